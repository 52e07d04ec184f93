"""Measures pages in a browser by the functions of page_measures.js."""

from pathlib import Path

MEASURES = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def measured(page, name: str):
    """What a function of page_measures.js finds in a page: `layoutFaults` or `leastContrast`."""
    return page.evaluate(f"() => {{ {MEASURES}; return {name}(); }}")
