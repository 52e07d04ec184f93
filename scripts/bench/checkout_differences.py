"""Differences between runs of two checkouts, and tables of them; compare_checkouts.py makes the runs."""

import torch

CLOCK = ("time", "per_second", "runtime", "seconds")  # parts of the names of metrics that depend on time
REFUSED = 2  # exit status for a user's mistake


def compare(before: dict, after: dict) -> dict:
    """Differences of two runs in weights, metrics and start-up lines; and the number of steps with a gradient."""
    lines = [{line: True for line in side["lines"]} for side in (before, after)]
    return {
        "weights": weights(before["weights"], after["weights"]),
        "log": common(*(metrics(side["log"]) for side in (before, after))),
        "trained": sum(entry.get("grad_norm", 0) > 0 for entry in after["log"]),
        "lines": common(*lines),
    }


def common(before: dict, after: dict) -> dict:
    """The number of equal values of two mappings, the differing values, and the names that only one has."""
    both = [name for name in before if name in after]
    return {
        "equal": sum(before[name] == after[name] for name in both),
        "differing": {name: [before[name], after[name]] for name in both if before[name] != after[name]},
        "before": [name for name in before if name not in after],
        "after": [name for name in after if name not in before],
    }


def weights(before: dict, after: dict) -> dict:
    """`common` of the tensors' bits, types and shapes, with the largest |difference| of tensors of one shape."""
    found = common(*({name: bits(tensor) for name, tensor in side.items()} for side in (before, after)))
    pairs = [(before[name], after[name]) for name in found["differing"]]
    gaps = [(one.double() - two.double()).abs().max().item() for one, two in pairs if one.shape == two.shape]
    return found | {"differing": list(found["differing"]), "max_difference": max(gaps, default=0.0)}


def bits(tensor: torch.Tensor) -> tuple:
    return tensor.dtype, tensor.shape, tensor.flatten().view(torch.uint8).numpy().tobytes()


def metrics(log: list[dict]) -> dict[str, str]:
    """{"metric, step N": value} of a log, without time-dependent metrics. Values are text, so that NaN equals NaN."""
    return {
        f"{name}, step {entry['step']}": repr(value)
        for entry in log
        if "step" in entry
        for name, value in entry.items()
        if name != "step" and not any(part in name for part in CLOCK)
    }


def refusals(before: dict, after: dict) -> dict:
    """{settings: [[status, sentence] before, after]} of the settings that both were given."""
    return {name: [before[name], after[name]] for name in before}


def largest_gaps(differing: dict) -> dict[str, float]:
    """{metric: largest |difference| over steps}; infinite where a value is no number."""
    gaps = {}
    for name, (before, after) in differing.items():
        metric = name.rpartition(", step ")[0]
        numbers = "None" not in (before, after)
        gaps[metric] = max(gaps.get(metric, 0.0), abs(float(before) - float(after)) if numbers else float("inf"))
    return gaps


def differs(found: dict) -> bool:
    """Whether anything differs other than wording and names that only one checkout has."""
    statuses = [before[0] != after[0] for before, after in found["refusals"].values()]
    parts = [recipe[part] for recipe in found["recipes"].values() for part in ("weights", "log", "settings")]
    lost = [recipe["weights"][side] for recipe in found["recipes"].values() for side in ("before", "after")]
    return any(statuses) or any(part["differing"] for part in parts) or any(lost)


def report(found: dict) -> str:
    """Markdown: a row per recipe, the differences of each part, and refusals with different wording."""
    lines = [
        "| recipe | equal tensors | differing | largest difference | steps with a gradient | metrics equal / differing "
        "/ of one | settings equal / differing / of one | start-up lines equal / of one |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, recipe in found["recipes"].items():
        part = recipe["weights"]
        cells = [name, part["equal"], len(part["differing"]), f"{part['max_difference']:g}", recipe["trained"]]
        for part in ("log", "settings", "lines"):
            one = len(recipe[part]["before"]), len(recipe[part]["after"])
            numbers = [recipe[part]["equal"], len(recipe[part]["differing"])][: 1 if part == "lines" else 2]
            cells.append(" / ".join(map(str, [*numbers, f"{one[0]} + {one[1]}"])))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for part in ("weights", "log", "settings", "lines"):
        for side in ("before", "after"):
            names = {name: None for recipe in found["recipes"].values() for name in recipe[part][side]}
            lines += [f"\n{part}, {side} only:\n", *(f"- `{name.strip()}`" for name in names)] if names else []
    for name, recipe in found["recipes"].items():
        for field, (before, after) in recipe["settings"]["differing"].items():
            lines.append(f"\n{name}: {field} is {after}, was {before}")
        gaps = largest_gaps(recipe["log"]["differing"])
        lines += [f"\n{name}: {metric} differs by up to {gap:.2g}" for metric, gap in gaps.items()]
    refused = found["refusals"]
    other = {name: pair for name, pair in refused.items() if pair[0] != pair[1] or pair[0][0] != REFUSED}
    lines.append(f"\n{len(refused) - len(other)} of {len(refused)} wrong settings are refused in the same words\n")
    lines += ["| other settings | status, sentence before | after |", "| --- | --- | --- |"] if other else []
    for name, (before, after) in other.items():
        lines.append(f"| `{name}` | {before[0]}: {before[1]} | {after[0]}: {after[1]} |")
    return "\n".join(lines)
