"""Compares this checkout with another commit of the project: weights, logs, settings, start-up tables, refusals.

    git worktree add ../before COMMIT
    python scripts/bench/compare_checkouts.py ../before --json compare.json

Both run with this Python, each in its own folder. Every recipe of both is trained for a few steps with its own seed:
the demo recipes as they are, the others with the tiny models, the demo data and short completions. The saved weights
must agree bit for bit, logged metrics exactly, settings (recipes as they are) in every field that both have, refusals
of wrong settings in their exit status. Wording may differ and is shown side by side. Exit status 1 if anything else
differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from checkout_differences import common, compare, differs, refusals, report
from safetensors.torch import load_file
from wrong_settings import FLAGS, LAUNCHER

ROOT = Path(__file__).resolve().parents[2]
RECIPES = "config/recipes"
COMMON = {"use_cpu": True, "logging_steps": 1, "disable_tqdm": True, "report_to": "none"}
SMALL = {
    "model_name_or_path": "scripts/demo/tiny_model",
    "dataset_name": "metadata/demo/trajectory_train.yaml",
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "log_completions": False,
}
LENGTHS = {
    "grpo": {"max_completion_length": 160},
    "grpo_ma": {"max_thought_length": 80, "max_answer_length": 80},
    "tree_adv": {"max_completion_length": 160, "min_gap": 16},
    "tree_grpo": {
        "model_name_or_path": "scripts/demo/tiny_text_model",
        "dataset_name": "metadata/demo/search_train.yaml",
        "environment_args": '{"retriever": "metadata/demo/search/corpus.jsonl"}',
        "per_device_train_batch_size": 48,
        "max_turn_length": 48,
        "max_observation_length": 96,
        "max_completion_length": 512,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder with another commit of the project")
    parser.add_argument("--recipes", nargs="+", help="names without .yaml (default: all)")
    parser.add_argument("--steps", type=int, default=3, help="optimiser steps of a training run (default 3)")
    parser.add_argument("--json", type=Path, help="file for everything that was compared")
    args = parser.parse_args()
    other = args.other.resolve()
    if not (other / "train.py").is_file():
        parser.error(f"{args.other} holds no train.py: name a checkout of this project")
    recipes = args.recipes or sorted(path.stem for path in (ROOT / RECIPES).glob("*.yaml"))
    lacking = [name for name in recipes for root in (ROOT, other) if not (root / RECIPES / f"{name}.yaml").is_file()]
    if lacking:
        parser.error(f"not a recipe of both checkouts: {', '.join(lacking)}")
    with tempfile.TemporaryDirectory() as folder:
        sides = [(other, Path(folder, "before")), (ROOT, Path(folder, "after"))]  # maybe the same checkout
        read = [probe(root, side, recipes) for root, side in sides]
        found = {"recipes": {}, "refusals": refusals(*(side["refuse"] for side in read))}
        for name in recipes:
            runs = [train(root, side / name, name, args.steps) for root, side in sides]
            settings = common(*(side["resolve"][name] for side in read))
            found["recipes"][name] = compare(*runs) | {"settings": settings}
            print(f"{name}: {len(found['recipes'][name]['weights']['differing'])} tensors differ", file=sys.stderr)
    print(report(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.exit(int(differs(found)))


def start(root: Path, command: list, stdin: str | None = None) -> subprocess.CompletedProcess:
    """Runs `command` in a checkout: one thread, no network, no PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHON"] = sys.executable
    return subprocess.run(command, cwd=root, env=environment, input=stdin, capture_output=True, text=True)


def flags_of(settings: dict) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


def probe(root: Path, folder: Path, recipes: list[str]) -> dict:
    """The output of checkout_probe.py for the recipes and the wrong settings, and the launcher's refusals."""
    folder.mkdir()
    base = flags_of(COMMON | {"max_steps": 1, "output_dir": folder / "refused"})
    asked = {
        "resolve": {name: ["--config", f"{RECIPES}/{name}.yaml", "--use_cpu", "true"] for name in recipes},
        "refuse": {
            f"{name} {wrong}": ["--config", f"{RECIPES}/{name}.yaml", *base, *wrong.split()]
            for name, all_wrong in FLAGS.items()
            for wrong in all_wrong
        },
    }
    out = folder / "probe.json"
    done = start(root, [sys.executable, ROOT / "scripts/bench/checkout_probe.py", out], json.dumps(asked))
    if done.returncode:
        sys.exit(f"{root}: its settings cannot be read:\n{done.stderr[-2000:]}")
    found = json.loads(neutral(out.read_text(encoding="utf-8"), root, folder))
    for wrong in LAUNCHER:
        variables, flags = (wrong, "") if "=" in wrong else ("", wrong)
        command = ["env", *variables.split(), "bash", "scripts/run_grpo_lora.sh", "--dry-run", *flags.split()]
        done = start(root, command)
        said = neutral(done.stderr, root, folder).strip().splitlines()
        found["refuse"][f"run_grpo_lora.sh {wrong}"] = [done.returncode, said[-1] if done.returncode else ""]
    return found


def neutral(text: str, root: Path, folder: Path) -> str:
    """`text` without the paths of the checkout and of its output."""
    return text.replace(str(folder), "OUT").replace(str(root), "CHECKOUT")


def train(root: Path, folder: Path, recipe: str, steps: int) -> dict:
    """Trains a recipe; {"weights": name -> tensor, "log": entries of log.jsonl, "lines": the start-up table}."""
    path = f"{RECIPES}/{recipe}.yaml"
    method = yaml.safe_load((root / path).read_text(encoding="utf-8"))["method"]
    small = {} if recipe.endswith("_demo") else SMALL | LENGTHS[method]
    flags = flags_of(COMMON | small | {"max_steps": steps, "output_dir": folder})
    done = start(root, [sys.executable, "train.py", "--config", path, *flags])
    if done.returncode:
        sys.exit(f"{root}: {recipe} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    files = [file for file in sorted(folder.rglob("*.safetensors")) if ".incomplete" not in file.parts]
    return {
        "weights": {f"{file.relative_to(folder)}:{name}": t for file in files for name, t in load_file(file).items()},
        "log": [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()],
        "lines": [ln for ln in neutral(done.stdout, root, folder.parent).splitlines() if ln.startswith("  ")],
    }


if __name__ == "__main__":
    main()
