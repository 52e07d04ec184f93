"""Assembles the page: one HTML file without network access, in which model output is never markup."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from dataclasses import replace
from pathlib import Path

from report.gallery import counts_of, items_of, read_predictions
from report.history import SPIKE_FACTOR, checkpoint_series, progress, read_history, series, spikes, thinned
from report.lines import number, read_object, text
from report.pictures import Pictures, Thumbnails
from report.sources import Source
from report.tree_pages import read_trees, tree_items

FILES = Path(__file__).parent / "page_files"
SCRIPTS = (
    *("base.js", "links.js", "charts.js", "tables.js", "gallery.js", "detail.js"),
    *("tree_layout.js", "rewards.js", "node_detail.js", "trees.js", "compare.js", "main.js"),
)
STYLES = ("vendor/uPlot.min.css", "style.css", "parts.css")
GRADIENT_NORM = "grad_norm"


def page_content(sources: list[Source], tasks: dict, thumbnails: Thumbnails | None = None) -> tuple[dict, str]:
    """(content of the page, all pictures as one text); see page_files/main.js for the format."""
    predictions = {s.name: read_predictions(s.folder) for s in sources if s.is_evaluation}
    trees = {s.name: read_trees(s.folder) for s in sources if s.is_run}
    expected = sum(len(found) for found, _ in [*predictions.values(), *trees.values()])
    pictures = Pictures(thumbnails or Thumbnails(), expected)
    runs, evaluations, notes = [], [], []
    for source in sources:
        if source.is_run:
            found, tree_notes = trees[source.name]
            notes += [f"{source.name}: {note}" for note in tree_notes]
            runs.append(_run(source, found, tasks, pictures))
        if source.is_evaluation:
            found, faults = predictions[source.name]
            notes += [f"{source.name}: {faults} lines of predictions.jsonl were left out"] if faults else []
            evaluations.append(_evaluation(source, found, tasks, pictures))
    if pictures.missing:
        notes.append(f"{pictures.missing} pictures could not be read: their items are shown without them")
    if pictures.over_budget:
        notes.append(f"{pictures.over_budget} pictures did not fit into the file: their items are shown without them")
    made = time.strftime("%Y-%m-%d %H:%M")
    content = {"made": made, "runs": runs, "evaluations": evaluations, "notes": notes, "pictures": pictures.places}
    return _plain(content | {"spike_factor": SPIKE_FACTOR}), pictures.blob


def render_page(title: str, content: dict, blob: str, live: bool = False) -> str:
    """The HTML of a page. A live page polls its own server; any other page makes no connections."""
    charts = f"/*\n{_read('vendor/uPlot.LICENSE')}*/\n" + _read("vendor/uPlot.iife.min.js")  # pages contain a copy
    scripts = [charts, '"use strict";\n' + "\n".join(map(_read, SCRIPTS))]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src {hashes}",
        "connect-src 'self'" if live else "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    parts = {
        "TITLE": _escaped(title),
        "POLICY": "; ".join(policy),
        "STYLE": "\n".join(map(_read, STYLES)),
        "LIVE": "yes" if live else "no",
        "CHARTS": scripts[0],
        "SCRIPT": scripts[1],
        "PICTURES": blob,
        "DATA": as_script_data({"title": title, **content}),
    }
    page = _read("page.html")
    for name, value in parts.items():  # the data comes last, so nothing in it is taken for a placeholder
        page = page.replace(f"@{name}@", value, 1)
    return page


def as_script_data(content: dict) -> str:
    """JSON for use inside a script element: it contains no `<`, so no tag can start or end in it."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _run(source: Source, trees: list[dict], tasks: dict, pictures: Pictures) -> dict:
    history, start = read_history(source.folder)
    curves = series(history) | checkpoint_series(source.folder)
    if isinstance(start.get("thought_end"), str):
        tasks = {name: replace(task, thought_end=start["thought_end"]) for name, task in tasks.items()}
    return {
        "name": source.name,
        "series": {name: thinned(points) for name, points in curves.items()},
        "spikes": spikes(curves[GRADIENT_NORM]) if GRADIENT_NORM in curves else [],
        "progress": progress(history, start),
        "settings": _settings({k: v for k, v in start.items() if k not in ("event", "time", "ended")}),
        "trees": tree_items(trees, tasks, pictures),
    }


def _evaluation(source: Source, predictions: list[dict], tasks: dict, pictures: Pictures) -> dict:
    result = read_object(source.folder / "metrics.json")
    settings = result.get("settings") or read_object(source.folder / "settings.json")
    counts = result.get("counts") if isinstance(result.get("counts"), dict) else {}
    return {
        "name": source.name,
        "metrics": _metrics(result.get("metrics"), result.get("intervals")),
        "counts": {text(k, 60): number(v) for k, v in counts.items()},
        "statuses": counts_of(predictions),
        "settings": _settings(settings),
        "items": items_of(predictions, tasks, pictures),
    }


def _metrics(metrics, intervals) -> list[dict]:
    """[{"task", "metric", "value", "low", "high"}]; low and high are None without a valid interval."""
    rows = []
    for task, values in metrics.items() if isinstance(metrics, dict) else ():
        found = intervals.get(task) if isinstance(intervals, dict) else None
        for name, value in values.items() if isinstance(values, dict) else ():
            between = found.get(name) if isinstance(found, dict) else None
            low, high = map(number, between) if isinstance(between, list) and len(between) == 2 else (None, None)
            row = {"task": text(task, 80), "metric": text(name, 80), "value": number(value)}
            rows.append(row | {"low": low, "high": high})
    return rows


def _settings(settings) -> list[list[str]]:
    return [[text(k, 80), text(v, 500)] for k, v in settings.items()] if isinstance(settings, dict) else []


def _plain(value):
    """The same value with None for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _escaped(value: str) -> str:
    """Text escaped for HTML, including `@`, which marks the placeholders of page.html."""
    value = value.encode("utf-8", "backslashreplace").decode()
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("@", "&#64;")):
        value = value.replace(sign, entity)
    return value
