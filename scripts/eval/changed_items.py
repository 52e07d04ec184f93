"""The items on which two evaluations differ most, as text and as an HTML page with their pictures."""

import base64
import html
import io
import json

from dataset.media import MediaError, load_image

SIDE = 320  # pixels of a thumbnail's longer side
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px }
article { border-top: 1px solid #8888; padding: 1rem 0 }
img { max-width: 100% }
"""


def changed_items(pairs: list[tuple[dict, dict]], count: int) -> list[tuple[dict, dict]]:
    """The `count` pairs whose accuracy changed most, largest change first; unchanged pairs are left out."""
    scored = [pair for pair in pairs if None not in (pair[0].get("accuracy"), pair[1].get("accuracy"))]
    changed = [pair for pair in scored if pair[0]["accuracy"] != pair[1]["accuracy"]]
    return sorted(changed, key=lambda pair: -abs(pair[1]["accuracy"] - pair[0]["accuracy"]))[:count]


def changed_text(changed: list[tuple[dict, dict]]) -> str:
    """One paragraph per item, one line per fact."""
    if not changed:
        return "no item changed its accuracy"
    lines = ["items whose accuracy changed most, A -> B"]
    for left, right in changed:
        lines.append(f"  {left['id']}  {left['accuracy']:.4f} -> {right['accuracy']:.4f}  ({left['question_type']})")
        lines += [f"    {name:9} {_short(value)}" for name, value in _facts(left, right)]
    return "\n".join(lines)


def page(a: str, b: str, table: str, changed: list[tuple[dict, dict]]) -> str:
    """A self-contained HTML page."""
    items = "\n".join(_article(left, right) for left, right in changed)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>A and B</title><style>{STYLE}</style><h1>Two evaluations</h1>"
        f"<p>A: {html.escape(a)}<br>B: {html.escape(b)}</p><pre>{html.escape(table)}</pre>"
        f"<h2>Items whose accuracy changed most</h2>{items or '<p>none</p>'}</html>\n"
    )


def _article(left: dict, right: dict) -> str:
    facts = "".join(
        f"<dt>{name}</dt><dd><pre>{html.escape(_shown(value))}</pre></dd>" for name, value in _facts(left, right)
    )
    title = f"{left['id']}: {left['accuracy']:.4f} → {right['accuracy']:.4f} ({left['question_type']})"
    pictures = "".join(map(_thumbnail, (left.get("record") or {}).get("images") or []))
    return f"<article><h3>{html.escape(title)}</h3>{pictures}<dl>{facts}</dl></article>"


def _facts(left: dict, right: dict) -> list[tuple[str, object]]:
    question = (left.get("record") or {}).get("question")
    facts = [("question", question), ("answer", left.get("sol", left.get("answer")))]
    facts += [("A", left.get("prediction")), ("B", right.get("prediction"))]
    return [*facts, ("A wrote", left.get("completion")), ("B wrote", right.get("completion"))]


def _thumbnail(path: str) -> str:
    try:
        picture = load_image(path)
    except (MediaError, TypeError):  # TypeError: a damaged record
        return "<p>(the picture cannot be read)</p>"
    picture.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=85)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}">'


def _shown(value) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be written


def _short(value) -> str:
    text = " ".join(_shown(value).split())
    return text if len(text) <= 100 else text[:97] + "..."
