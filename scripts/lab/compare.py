"""Training methods at an equal budget: one run per method and seed, their table, curves and paired differences.

    python scripts/lab/compare.py --recipe config/recipes/grpo_ma_demo.yaml --methods T4A1,T16A1,T4A4,tree_adv \\
        --budget tokens=120000 --seeds 3 --test metadata/demo/trajectory_test.yaml --output_dir runs/compare

(scripts/eval/compare.py compares two evaluations of finished models.) Each line of the table is one configuration:
T{K}A{M} for K thoughts with M answers each, or the name of a method; `--line NAME BASE key=value ...` adds a line with
other settings. All lines have the same prompts per update, and methods without a size of their own use the recipe's
number of leaves and completion length. The untrained model is a line, too. Each run is one process with a folder
LINE-seedN in --output_dir; the same command continues after an interruption, repeats crashed runs and skips finished
ones. A budget other than updates needs a learning rate that does not depend on the number of steps: unless --set names
a schedule, it is constant after the warm-up.

Written: comparison.md, comparison.html, comparison.json, and one SVG per curve.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import yaml

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from _root import locate, use_checkout

ROOT = use_checkout()
sys.path.insert(0, str(ROOT / "scripts" / "lab"))

from comparison import differences, read_runs, summary
from comparison_lines import UNTRAINED, Line, as_flags, changes_of, line_of, own_line, recipe_for
from comparison_pages import write_pages

from dataset.unique_keys import UniqueKeyLoader
from task.errors import UserError

# Of every run: a log line per update, nothing but the results kept.
PLAIN = {
    "logging_steps": 1, "save_strategy": "no", "report_to": "none", "log_trees": None, "disable_tqdm": True,
    "print_prompt": False,
}  # fmt: skip


def planned(args) -> list[Line]:
    """The lines of the table; the untrained model first."""
    names = [name for word in args.methods for name in word.split(",") if name]
    lines = [line_of(name) for name in names] + [own_line(words) for words in args.line]
    if not lines:
        raise UserError("nothing to compare: name lines with --methods, such as T4A1,T4A4")
    taken = [line.name for line in lines]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"line {twice} is given twice: name it once")
    return [Line(UNTRAINED, lines[0].settings), *lines]


def command_of(line: Line, seed: int, folder: Path, recipe: dict, args) -> tuple[list[str], dict]:
    """(command, recipe) of one run."""
    recipe, flags = recipe_for(line, recipe, args.prompts)
    budget = "updates=0" if line.name == UNTRAINED else args.budget
    words = [sys.executable, str(ROOT / "scripts/lab/budget_run.py"), "--config", str(folder / "recipe.yaml")]
    words += ["--output_dir", str(folder), "--budget", budget, "--seed", str(seed), "--data_seed", str(seed)]
    words += ["--test_samples", str(args.samples), "--test_dataset", *args.test]
    words += ["--test_by", args.by] if args.by else []
    return words + as_flags(flags), recipe


def run(line: Line, seed: int, recipe: dict, args, devices: Queue) -> None:
    """One run on the next free device (None: those that are visible); a crash is noted in its folder."""
    folder = args.output_dir / f"{line.name}-seed{seed}"
    command, recipe = command_of(line, seed, folder, recipe, args)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    noted, plan = folder / "plan.json", {"command": command[2:], "recipe": recipe}
    if noted.exists() and json.loads(noted.read_text()) != plan:
        raise UserError(f"{folder} was run with other settings: name another --output_dir, or remove it")
    noted.write_text(json.dumps(plan))
    print(f"{folder.name} ...", flush=True)
    device = devices.get()
    environment = os.environ | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    with (folder / "run.log").open("a") as log:
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment).returncode
    devices.put(device)
    crash = folder / "crashed.txt"
    crash.unlink(missing_ok=True)
    if status:
        last = (folder / "run.log").read_text(errors="replace").strip().splitlines()[-1:]
        crash.write_text(f"status {status}: {''.join(last)[:300]}\n")
    print(f"{folder.name} " + (crash.read_text().strip() if status else "finished"), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True, help="a recipe of train.py: model, data and all other settings")
    parser.add_argument("--methods", nargs="+", default=[], help="T4A4 or methods, separated by commas or spaces")
    line = {"metavar": "NAME BASE key=value", "help": "one more line: BASE (T4A4 or a method) with other settings"}
    parser.add_argument("--line", nargs="+", action="append", default=[], **line)
    parser.add_argument("--set", nargs="+", default=[], metavar="key=value", help="settings of all lines")
    parser.add_argument("--budget", required=True, help="tokens=N, leaves=N, seconds=N or updates=N, per run")
    parser.add_argument("--seeds", type=int, default=5, help="N: seeds 1 to N (default 5)")
    parser.add_argument("--test", nargs="+", default=[], help="held-out manifests; default: eval_dataset_name")
    parser.add_argument("--samples", type=int, default=2, help="sampled completions per held-out record (default 2)")
    parser.add_argument("--metric", default="accuracy", help="metric on the held-out records (default accuracy)")
    parser.add_argument("--by", metavar="KEY", help="also the accuracy for each value of a key of the held-out records")
    parser.add_argument("--prompts", type=int, help="prompts per micro-batch; default: the recipe's")
    parser.add_argument("--reference", help="the line that costs are relative to; default: T4A1 or the first line")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at the same time (default 1)")
    parser.add_argument("--devices", nargs="+", help="run one job on each of these GPUs (CUDA_VISIBLE_DEVICES)")
    parser.add_argument("--runs", type=int, help="start at most this many runs now, then show the table")
    parser.add_argument("--output_dir", type=Path, required=True)
    args = parser.parse_args()
    args.output_dir = args.output_dir.resolve()
    return args


def read_recipe(args) -> dict:
    """The recipe with what every run needs and what --set changes."""
    recipe = yaml.load(Path(locate(args.recipe)).read_text(), Loader=UniqueKeyLoader)
    steady = {} if args.budget.startswith("updates") else {"lr_scheduler_type": "constant_with_warmup"}
    recipe |= PLAIN | steady | changes_of(args.set)
    args.test = args.test or [*(recipe.get("eval_dataset_name") or [])]
    if not args.test:
        raise UserError("no test set: give --test MANIFEST.yaml, or eval_dataset_name in the recipe")
    return recipe


def main() -> int:
    args = parse()
    try:
        recipe, lines = read_recipe(args), planned(args)
        waiting = [(line, seed) for seed in range(1, args.seeds + 1) for line in lines]
        waiting = [(o, s) for o, s in waiting if not (args.output_dir / f"{o.name}-seed{s}" / "result.json").exists()]
        devices: Queue = Queue()
        for device in args.devices or [None] * args.jobs:
            devices.put(device)
        with ThreadPoolExecutor(devices.qsize()) as pool:
            list(pool.map(lambda pair: run(*pair, recipe, args, devices), waiting[: args.runs]))
    except UserError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    names = [line.name for line in lines]
    reference = args.reference or ("T4A1" if "T4A1" in names else names[1])
    runs = read_runs(args.output_dir, names)
    crashed = {}
    for file in sorted(args.output_dir.glob("*-seed*/crashed.txt")):
        crashed.setdefault(file.parent.name.rpartition("-seed")[0], []).append(file.read_text().strip())
    rows, pairs = summary(runs, args.metric, reference), differences(runs, args.metric)
    title = f"{Path(args.recipe).stem}, {args.budget} per run"
    command = "python scripts/lab/compare.py " + shlex.join(sys.argv[1:])
    print(write_pages(args.output_dir, title, command, rows, pairs, crashed, runs, args.metric, reference))
    (args.output_dir / "comparison.json").write_text(json.dumps({"lines": rows, "pairs": pairs, "crashed": crashed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
