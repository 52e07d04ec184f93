"""Creates a task file from task/TEMPLATE.py: `grpo-ma new-task NAME [--task_dir DIR]`.

NAME becomes the task_type, the `question_type` of the records. The file is NAME.py, with underscores, in DIR, else in
the folder that GRPO_MA_TASKS names, else in the checkout's task/.

Exit status 2 for a user's mistake, with one sentence.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _root import use_checkout

ROOT = use_checkout()

from task.errors import UserError
from task.own_tasks import add_task_dir, own_folders
from task.task_loader import load_tasks

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="letters, digits, - and _, such as sign-reading")
    add_task_dir(parser)
    args = parser.parse_args(argv)
    try:
        file = create(args.name, args.task_dir)
    except (UserError, OSError) as error:
        print(f"new_task.py: {error}", file=sys.stderr)
        return 2
    own = f" --task_dir {file.parent}" if file.parent != ROOT / "task" else ""
    print(f"{file}: set its template and rewards, then check it with `grpo-ma smoke{own}`")
    return 0


def create(name: str, task_dir: str | None) -> Path:
    """Writes the task file and returns its path. UserError for a name that is taken or cannot be one."""
    if not NAME.fullmatch(name):
        raise UserError(f"a task cannot be called {name!r}: use letters, digits, - and _, such as sign-reading.")
    if task_dir is not None:
        Path(task_dir).mkdir(parents=True, exist_ok=True)
    file = (next(iter(own_folders()), ROOT / "task") / f"{name.replace('-', '_')}.py").absolute()
    if file.exists():
        raise UserError(f"{file} exists already: choose another name.")
    template = (ROOT / "task" / "TEMPLATE.py").read_text(encoding="utf-8")
    body = template.partition('"""\n')[2]  # what follows the docstring
    assert body.count('"my-task"') == 1, "the template names its task once"
    file.write_text(f'"""{name}: describe the task here."""\n{body.replace("my-task", name)}', encoding="utf-8")
    try:
        load_tasks()
    except UserError:  # another file has this task_type
        file.unlink()
        raise
    return file


if __name__ == "__main__":
    sys.exit(main())
