"""Compares two evaluations item by item: `python scripts/eval/compare.py A B [--common] [--html FILE] [--json]`.

A and B are output folders of eval.py, or their predictions.jsonl. Items are paired by id. For each task type and each
metric (accuracy, format, and whatever the task's own compute_metrics gives for a single prediction, such as the
distance of a path in pixels) it prints the two means, their difference B - A, the relative change, the paired bootstrap
interval of the difference, and the numbers of items on which B is better, worse or equal, if METRICS of the task
declares the metric's direction. The items whose accuracy changed most follow; `--html FILE` writes them with their
pictures. With several samples an item's metrics are its means and its pass@k. Exit status 2 for a user's mistake.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()

sys.path.insert(0, str(ROOT / "scripts" / "eval"))

from changed_items import changed_items, changed_text, page
from prediction_files import is_prediction

from task.errors import UserError
from task.own_tasks import add_task_dir
from task.rewards.directions import direction
from task.task_loader import load_tasks
from trainer.evaluation.intervals import bootstrap_interval
from trainer.evaluation.item_metrics import UNSCORED, item_metrics


def read_predictions(path: str) -> dict[str, dict]:
    """The predictions of an eval.py folder (or of the .jsonl file itself), keyed by id.

    Raises:
        UserError: no such file, a line that is not a prediction of eval.py, or an id that occurs twice.
    """
    file = Path(path)
    file = file / "predictions.jsonl" if file.is_dir() else file
    if not file.is_file():
        raise UserError(
            f"{file} does not exist: name a folder eval.py wrote (of --checkpoints, one checkpoint-STEP in it), or a "
            "predictions.jsonl."
        )
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        if not is_prediction(item):
            raise UserError(f"{file}, line {number}: not a prediction of eval.py; evaluate again, or remove the line.")
        key = item["id"]
        if key in found:
            raise UserError(f"{file}, line {number}: id {key!r} occurs twice, but an item counts once: remove one.")
        found[key] = item
    if not found:
        raise UserError(f"{file} holds no predictions: evaluate again.")
    return found


def pair(a: dict[str, dict], b: dict[str, dict], common: bool) -> tuple[list[tuple[dict, dict]], list[str]]:
    """The pairs (item of A, item of B) in A's order, and a sentence for everything that was left out.

    Raises:
        UserError: ids on only one side (unless `common`), no id on both, or an id whose question or true answer differs
            between the sides.
    """
    only_a, only_b = [i for i in a if i not in b], [i for i in b if i not in a]
    notes = []
    if only_a or only_b:
        example = (only_a or only_b)[0]
        unpaired = f"{len(only_a)} ids are only in A and {len(only_b)} only in B (such as {example!r})"
        if not common:
            raise UserError(f"{unpaired}: evaluate both on the same data, or compare the common ids with --common.")
        notes.append(f"{unpaired}; they are left out.")
    pairs = [(a[i], b[i]) for i in a if i in b]
    if not pairs:
        raise UserError("no id is in both A and B: evaluate both on the same data.")
    for left, right in pairs:
        for key in ("question_type", "question", "answer"):
            if _field(left, key) != _field(right, key):
                raise UserError(
                    f"id {left['id']!r} has a different {key} in A ({_short(_field(left, key))}) than in B "
                    f"({_short(_field(right, key))}): the two were not evaluated on the same data."
                )
    loaded = [p for p in pairs if not {p[0].get("status"), p[1].get("status")} & set(UNSCORED)]
    if not loaded:
        raise UserError("every item failed in A or B: there is nothing to compare.")
    if len(loaded) < len(pairs):
        lost = f"{len(pairs) - len(loaded)} items could not be loaded or completed in A or B"
        notes.append(f"{lost} ({', '.join(UNSCORED)}); they are left out.")
    return loaded, notes


def compare(
    pairs: list[tuple[dict, dict]], tasks: dict, resamples: int = 10_000, seed: int = 42, pass_threshold: float = 1.0
) -> dict:
    """{task_type: {metric: comparison}}.

    A comparison has n, a, b, difference (b - a), relative, low, high, better, wins, losses and ties. `relative` is
    difference / |a|, None where a is 0. `better` is the direction that the task file declares in METRICS; None: it
    declares none. Wins are items on which B is better, None without a direction.
    """
    values: dict[str, dict[str, list]] = {}
    for left, right in pairs:
        a, b = (_metrics_of(item, tasks.get(item["question_type"]), pass_threshold) for item in (left, right))
        for metric in a:
            if metric in b:
                values.setdefault(left["question_type"], {}).setdefault(metric, []).append((a[metric], b[metric]))
    return {
        name: {
            metric: _comparison(_better(metric, tasks.get(name)), np.array(v), resamples, seed)
            for metric, v in metrics.items()
        }
        for name, metrics in values.items()
    }


def _metrics_of(item: dict, task, pass_threshold: float) -> dict[str, float]:
    try:
        return item_metrics(item, task, pass_threshold)
    except Exception:  # a compute_metrics that needs several predictions
        return item_metrics(item, None, pass_threshold)


def _better(metric: str, task) -> str | None:
    return direction(metric, task.metrics if task else {})


def _comparison(better: str | None, values: np.ndarray, resamples: int, seed: int) -> dict:
    # values: (n, 2), A and B of each pair
    change = values[:, 1] - values[:, 0]
    rise, fall = int((change > 0).sum()), int((change < 0).sum())
    wins, losses = {"higher": (rise, fall), "lower": (fall, rise), None: (None, None)}[better]
    a, b = values.mean(axis=0)
    low, high = bootstrap_interval(change, resamples, seed)
    return {
        "n": len(values),
        "a": float(a),
        "b": float(b),
        "difference": float(change.mean()),
        "relative": float(change.mean() / abs(a)) if a else None,
        "low": low,
        "high": high,
        "better": better,
        "wins": wins,
        "losses": losses,
        "ties": len(values) - rise - fall,
    }


def table(result: dict) -> str:
    """The comparison as text, one block a task type."""
    width = max((len(m) for metrics in result.values() for m in metrics), default=6) + 9
    lines = []
    for task_type, metrics in result.items():
        lines.append(f"{task_type}, {max(f['n'] for f in metrics.values())} pairs, B - A with its 95% interval")
        lines.append(
            f"  {'':{width}} {'A':>10} {'B':>10} {'B - A':>10} {'interval':>23} {'change':>8}  B better/worse/same"
        )
        for metric, f in metrics.items():
            name = f"{metric} ({f['better']})" if f["better"] else metric
            verdict = f"{f['wins']}/{f['losses']}/{f['ties']}" if f["better"] else "no direction declared"
            change = "" if f["relative"] is None else f"{f['relative']:+.1%}"
            interval = f"[{f['low']:+.4f}, {f['high']:+.4f}]"
            lines.append(
                f"  {name:{width}} {f['a']:10.4f} {f['b']:10.4f} {f['difference']:+10.4f} {interval:>23} {change:>8}"
                f"  {verdict}"
            )
        lines.append("")
    return "\n".join(lines)


def _field(item: dict, key: str):
    return (item.get("record") or {}).get(key) if key == "question" else item.get(key)


def _short(value) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A", help="folder or predictions.jsonl of the first run (the baseline)")
    parser.add_argument("b", metavar="B", help="folder or predictions.jsonl of the second run")
    parser.add_argument("--common", action="store_true", help="compare only the ids that both have")
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples (default 10000)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the bootstrap (default 42)")
    parser.add_argument(
        "--pass_threshold", type=float, default=1.0, help="lowest passing accuracy of a sample (default 1)"
    )
    parser.add_argument("--changed", type=int, default=10, help="number of most changed items to show (default 10)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the tables and changed items, with pictures")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    add_task_dir(parser)
    args = parser.parse_args(argv)
    try:
        if args.resamples < 100:
            raise UserError(f"--resamples {args.resamples}: an interval needs at least 100.")
        pairs, notes = pair(read_predictions(args.a), read_predictions(args.b), args.common)
        result = compare(pairs, load_tasks(), args.resamples, args.seed, args.pass_threshold)
        changed = changed_items(pairs, args.changed)
        if args.html:
            text = page(args.a, args.b, table(result), changed)
            args.html.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        print(f"compare.py: {args.html} cannot be written ({error.strerror}): name another file.", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    for note in notes:
        print(note, file=sys.stderr)
    print(json.dumps(result, indent=2) if args.json else table(result) + "\n" + changed_text(changed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
