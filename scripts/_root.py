"""Makes a script use the packages of its own checkout, never an installed copy.

A script of scripts/FOLDER/ starts with these lines (scripts/*.py: `parent`; train.py: `parent / "scripts"`):

    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from _root import use_checkout

    ROOT = use_checkout()

After `pip install .` a plain `import task` would find the copy in site-packages, and task files added to the checkout
would be ignored.
"""

import functools
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("task", "dataset", "model", "trainer", "config")


def use_checkout() -> Path:
    """Puts the checkout's root first on sys.path, prints (stderr, rank 0) the folder of the tasks, returns the root.

    Exits with status 2 if one of the project's packages would still be imported from elsewhere.
    """
    ours = {str(ROOT), str(ROOT / "scripts")}
    sys.path[:] = [str(ROOT)] + [entry for entry in sys.path if entry not in ours]
    for name in PACKAGES:
        found = _folder_of(name)
        if found != ROOT / name:
            print(
                f"`import {name}` would load {found}, not {ROOT / name}: start the script in a fresh Python, "
                f"without another module called {name!r} on PYTHONPATH.",
                file=sys.stderr,
            )
            raise SystemExit(2)
    _tell_tasks()
    return ROOT


def locate(path: str) -> str:
    """The absolute form of a path that exists relative to the working folder or the checkout; any other path unchanged.

    So the shipped recipes work from any folder, and a saved adapter names its base by a valid path.
    """
    for folder in (Path(), ROOT):
        if (folder / path).exists():
            return str((folder / path).resolve())
    return path


@functools.cache  # a script may import another one
def _tell_tasks() -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"tasks from {ROOT / 'task'}", file=sys.stderr)


def _folder_of(name: str) -> Path | None:
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent
