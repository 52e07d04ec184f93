"""The command `grpo-ma`: one name for the scripts of the checkout that is installed.

    grpo-ma train --config config/recipes/grpo_ma_demo.yaml     # train.py with these arguments

A command replaces this process by its script, which uses the packages of its own checkout (scripts/_root.py). So a
folder `config/` or `model/` of another project does not get in the way.
"""

import difflib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "train": ("train.py", "trains a model with rollout trees"),
    "sft": ("scripts/train/sft.py", "warm start: supervised training on records with thoughts"),
    "eval": ("scripts/eval/eval.py", "evaluates a model, an adapter or a run's checkpoints"),
    "compare": ("scripts/eval/compare.py", "compares two evaluations record by record"),
    "report": ("scripts/report.py", "writes runs and evaluations into one HTML file"),
    "watch": ("scripts/watch.py", "shows a run in the browser while it trains"),
    "check": ("scripts/data/check.py", "checks manifests, records and media before training"),
    "convert": ("scripts/data/convert.py", "converts tables, conversations and public data sets to records"),
    "merge": ("scripts/merge_adapter.py", "merges an adapter into its base model"),
    "export": ("scripts/export/export.py", "writes a model and its tests for lmms-eval or VLMEvalKit"),
    "vllm-server": ("scripts/vllm_server.py", "starts vLLM as a server that samples for training"),
    "smoke": ("scripts/smoke_test.py", "checks the task files and their rewards"),
    "new-task": ("scripts/new_task.py", "creates a task file from the template"),
}


def main(argv: list[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return
    name, *rest = argv
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        _refuse(f"there is no command {name!r}" + (f": did you mean {near[0]}?" if near else f": it has {_names()}"))
    script = ROOT / COMMANDS[name][0]
    if not script.is_file():
        _refuse(
            f"{ROOT} has no {COMMANDS[name][0]}: the commands are those of a checkout; install it by "
            "`pip install --editable CHECKOUT` or scripts/setup.sh"
        )
    os.execv(sys.executable, [sys.executable, str(script), *rest])


def _help() -> str:
    lines = [f"  {name:<12} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(["usage: grpo-ma COMMAND [arguments]", "", *lines, "", "grpo-ma COMMAND --help: its arguments"])


def _names() -> str:
    return ", ".join(COMMANDS)


def _refuse(reason: str) -> None:
    print(f"grpo-ma: {reason}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
