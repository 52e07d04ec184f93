"""The table and the curves of a comparison as Markdown with SVG files, and as one HTML page."""

from __future__ import annotations

from html import escape
from pathlib import Path

from chart import chart
from comparison import AXES, curve
from comparison_lines import UNTRAINED

HEAD = (
    "line", "runs", "{metric} (95% over seeds)", "updates", "sampled tokens", "leaves", "seconds", "s per update",
    "relative cost", "tokens per update", "unique / row tokens", "output tokens", "largest spike score", "spikes",
)  # fmt: skip
NOTES = (
    "Seconds are those of the updates alone (CPU seconds where the run used the CPU). Relative cost is the median time "
    "of an update over that of {reference}. Unique / row tokens: tokens that a packed pass computes, over those of one "
    "row per leaf. Spike score: norm of the gradient before clipping over its mean in the run; a spike is above 10. "
    "Differences are paired by seed and record; 95% bootstrap over both."
)


def table_rows(rows: dict[str, dict], crashed: dict[str, list[str]]) -> list[list[str]]:
    found = []
    for name, row in rows.items():
        low, high = row["interval"]
        lost = len(crashed.get(name, []))
        cells = [name, f"{row['runs']}" + (f", {lost} crashed" if lost else "")]
        cells.append(f"{row['mean']:.4f} ({low:.4f} to {high:.4f})")
        if name == UNTRAINED:
            cells += ["0", *[""] * 7, f"{row['output_tokens']:.1f}", "", ""]
        else:
            cost, relative = row["per_step"], row["relative_cost"]
            cells += [f"{row[key]:,.0f}" for key in ("updates", "tokens", "leaves", "seconds")]
            cells += [f"{cost['seconds']:.2f}", "" if relative is None else f"{relative:.2f}", f"{cost['tokens']:,.0f}"]
            cells += [f"{cost['unique']:.2f}", f"{row['output_tokens']:.1f}", f"{row['spike_score']:.1f}"]
            cells += [str(row["spikes"])]
        found.append(cells)
    for name, errors in crashed.items():
        if name not in rows:
            found.append([name, f"0, {len(errors)} crashed", *[""] * (len(HEAD) - 2)])
    return found


def pair_rows(pairs: dict[str, dict]) -> list[list[str]]:
    return [
        [name, f"{one['difference']:+.4f}", "{:+.4f} to {:+.4f}".format(*one["interval"]), str(one["seeds"])]
        for name, one in pairs.items()
    ]


def part_rows(rows: dict[str, dict]) -> tuple[list[str], list[list[str]]]:
    """(head, rows) of the accuracy of each part of the test set; ([], []) without parts."""
    parts = sorted({part for row in rows.values() for part in row["parts"]})
    body = [[name, *(f"{row['parts'][part]:.4f}" for part in parts)] for name, row in rows.items()]
    return (["line", *parts], body) if parts else ([], [])


def charts(runs: dict, names: list[str]) -> dict[str, str]:
    """File name -> SVG of each logged metric against each axis."""
    trained = {line: found for line, found in runs.items() if found and line != UNTRAINED}
    found = {}
    for name in names:
        for axis in AXES:
            curves = {line: curve(of_line, name, axis) for line, of_line in trained.items()}
            curves = {line: points for line, points in curves.items() if points}
            if curves:
                file = f"{name.replace('/', '-')}-{axis}.svg"
                found[file] = chart(curves, f"{name} against {axis}", axis, name)
    return found


def write_pages(folder: Path, title: str, command: str, rows, pairs, crashed, runs, metric: str, reference: str) -> str:
    """Writes comparison.md, comparison.html and the SVG files; returns the Markdown."""
    evaluated = {name for found in runs.values() for run in found for line in run.log for name in line}
    curves = ["reward", *sorted(name for name in evaluated if name.startswith("eval_") and name.endswith(f"/{metric}"))]
    pictures = charts(runs, [*curves, "grad_norm"])
    for file, svg in pictures.items():
        (folder / file).write_text(svg + "\n")
    head = [name.format(metric=metric) for name in HEAD]
    body, differing = table_rows(rows, crashed), pair_rows(pairs)
    pair_head = ["lines", f"difference in {metric}", "95% interval", "seeds"]
    faults = [f"{line}: {error}" for line, errors in crashed.items() for error in errors]
    notes = NOTES.format(reference=reference)
    tables = [(head, body), (pair_head, differing), part_rows(rows)]
    tables = [(columns, cells) for columns, cells in tables if cells]
    parts = [f"# {title}", f"```\n{command}\n```", *(_markdown(*table) for table in tables), notes]
    parts += ["Crashed runs:\n\n" + "\n".join(f"- {fault}" for fault in faults)] if faults else []
    text = "\n\n".join([*parts, *(f"![{file}]({file})" for file in pictures)]) + "\n"
    (folder / "comparison.md").write_text(text)
    page = [f"<h1>{escape(title)}</h1><pre>{escape(command)}</pre>", *(_html(*table) for table in tables)]
    page += [f"<p>{escape(notes)}</p>", *(f"<p>crashed: {escape(fault)}</p>" for fault in faults)]
    style = "body{font:14px sans-serif;margin:2em}td,th{padding:4px 8px;border-bottom:1px solid #ddd;text-align:right}"
    page = "\n".join([*page, '<div style="display:flex;flex-wrap:wrap;gap:12px">', *pictures.values(), "</div>"])
    (folder / "comparison.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>{page}\n'
    )
    return text


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _html(head: list[str], rows: list[list[str]]) -> str:
    def row(cells, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + row(head, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"
