"""Task files of a few lines, written into a folder."""

from pathlib import Path

GOOD = """
TASK_CONFIG = {
    "task_type": "count",
    "grpo_template": "{Question} Count.",
    "description": "how many",
    "input_format": "a picture",
    "output_format": "a number",
    "frame": "none",
}


def format_reward(completion, sol, **kw):
    return 1.0


def accuracy_reward(completion, sol, **kw):
    return 0.5
"""


def write(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path
