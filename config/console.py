"""What the libraries print: no progress bars outside a terminal, each warning once."""

from __future__ import annotations

import logging
import os
import sys
import warnings

import datasets
from transformers.utils import logging as transformers_logging

LOGGERS = ("transformers", "trl", "peft", "accelerate", "datasets")


def quiet_libraries() -> None:
    """Turns the libraries' progress bars off where stderr is no terminal, and repeated warnings everywhere."""
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
        datasets.disable_progress_bars()
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for category in (UserWarning, FutureWarning):
        warnings.filterwarnings("once", category=category, append=True)
    transformers_logging.get_logger()  # makes the handler
    handlers = {handler for name in LOGGERS for handler in logging.getLogger(name).handlers} | {logging.lastResort}
    for handler in handlers:
        if not any(isinstance(known, Once) for known in handler.filters):
            handler.addFilter(Once())


class Once(logging.Filter):
    """Lets each message through once."""

    def __init__(self):
        super().__init__()
        self.seen: set[tuple[str, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.name, record.getMessage()
        new = said not in self.seen
        self.seen.add(said)
        return new
