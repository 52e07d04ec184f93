"""The console of a run: no progress bars outside a terminal, each warning once, one sentence after Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def one_sentence_after_ctrl_c() -> Iterator[None]:
    """Ends the process with status 130 on a KeyboardInterrupt; the first process of a run says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # launchers send it again
        if os.environ.get("RANK", "0") == "0":
            print(
                f"{os.path.basename(sys.argv[0])}: interrupted, without saving: --resume auto goes on from the newest "
                "checkpoint, or begins anew if there is none (SIGTERM saves one first)",
                file=sys.stderr,
            )
        raise SystemExit(130) from None


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
