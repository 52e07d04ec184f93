"""Runs a benchmark of rollouts or whole steps in small, as a user would start it."""

import json
import subprocess
import sys

from paths import ROOT

SIZES = {"grid": 8, "thought": 6, "answer": 3, "text_tokens": 70, "think_num": 2, "answer_num": 2}
# 16 tokens of the picture and 72 of text; two thoughts, four answers.
PROMPT, TREE, ROWS = 16 + 72, 2 * 6 + 4 * 3, 4 * (6 + 3)


def metrics_of(script: str, folder, *more: str) -> dict:
    """What one round of scripts/bench/SCRIPT.py writes."""
    out = folder / f"{script}.json"
    flags = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, f"scripts/bench/{script}.py", *flags, *more, "--rounds", "1", "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
    return json.loads(out.read_text())
