"""Ctrl-C for processes that tests start."""

import signal


def heed_interrupts() -> None:
    """For `preexec_fn`: tests that run as a background job inherit an ignored SIGINT, and would hand it on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
