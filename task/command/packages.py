"""The five packages of this project belong together; another project's `config/` in the place of one is an error.

Imported by the other packages, so that the first import says what is wrong.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("config", "dataset", "model", "task", "trainer")
ROOT = Path(__file__).resolve().parents[2]


def check_packages() -> None:
    """Raises ImportError, one sentence, if one of the packages would be imported from another project."""
    for name in PACKAGES:
        loaded = sys.modules.get(name)
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin]) if spec is not None else ["nothing"]
        if Path(places[0]).resolve() != ROOT / name:
            raise ImportError(
                f"`import {name}` finds {places[0]}, but GRPO-MA needs {ROOT / name}: another project has a package of "
                "this name; run your script in the checkout of GRPO-MA, or use its command grpo-ma"
            )


check_packages()
