"""A time limit for Python code that may hang, in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RewardTimeout(BaseException):
    """Raised inside code that takes too long; not an Exception, so that a reward's handlers do not catch it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raises RewardTimeout in the block when it takes longer than `seconds` (None: no limit).

    Uses the process's only alarm timer, so there is no limit outside the main thread or while another alarm is set.
    Python code, regular expressions, sleeps and waits are interrupted; a call into a C library that never returns is
    not, and belongs in a process of its own (`task/runners`).
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if seconds is None or not in_main_thread or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def stop(number, frame):
        raise RewardTimeout

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
