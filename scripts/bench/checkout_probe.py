"""Reports how the checkout in the working folder parses command lines; compare_checkouts.py runs it in each checkout.

Reads {"resolve": {name: argv}, "refuse": {name: argv}} from stdin and writes to the file named as its argument:
{field: value} of the settings dataclasses for the command lines under "resolve", and [exit status, last line of stderr]
of train.py for those under "refuse".
"""

import contextlib
import io
import json
import os
import sys
from dataclasses import fields

sys.path.insert(0, os.getcwd())
import train


def resolve(argv: list[str]) -> dict[str, str]:
    parser = train.RecipeParser((train.GRPOScriptArguments, train.GRPOConfig, train.GRPOModelConfig))
    return {
        f"{type(owner).__name__}.{field.name}": repr(getattr(owner, field.name))
        for owner in parser.parse(argv)
        for field in fields(owner)
    }


def refuse(argv: list[str]) -> tuple[int, str]:
    sys.argv = ["train.py", *argv]
    status, stderr = 0, io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        try:
            train.main()
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = 1
            print(f"traceback of {type(error).__name__}: {error}", file=sys.stderr)
    lines = stderr.getvalue().strip().splitlines()
    return status, lines[-1] if status and lines else ""


if __name__ == "__main__":
    out, asked = sys.argv[1], json.load(sys.stdin)
    found = {
        "resolve": {name: resolve(argv) for name, argv in asked["resolve"].items()},
        "refuse": {name: refuse(argv) for name, argv in asked["refuse"].items()},
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)
