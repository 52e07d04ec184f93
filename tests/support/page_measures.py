"""Measures pages in a browser by the functions of page_measures.js."""

import time
from pathlib import Path

MEASURES = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def measured(page, name: str):
    """What a function of page_measures.js finds in a page: `layoutFaults` or `leastContrast`."""
    return page.evaluate(f"() => {{ {MEASURES}; return {name}(); }}")


def wait_until(page, condition: str, seconds: float = 20.0) -> None:
    """Waits until a JavaScript expression holds.

    Playwright's wait_for_function evaluates text inside the page, which our pages forbid: it works only where the
    condition holds at its first look.
    """
    until = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < until, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(30)
