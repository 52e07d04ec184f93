"""Where in a user's own code an error was raised."""

import traceback
from pathlib import Path


def place_of(error: BaseException, path: Path) -> str:
    """FILE:LINE of the innermost call of an error that lies in a task file or a helper beside it; else the file.

    Calls in libraries and in this project's own modules further in are not named: the task file called them.
    """
    frames = traceback.extract_tb(error.__traceback__)
    folder, own = Path(path).resolve().parent, None
    for frame in frames:
        file = Path(frame.filename).resolve()
        if file == Path(path).resolve() or (file.parent == folder and file.name.startswith("_")):
            own = f"{frame.filename}:{frame.lineno}"
    return own or str(path)
