"""What libraries print in a log file: no bars, and each message once."""

import os
import subprocess
import sys

import pytest
from interrupts import heed_interrupts
from paths import ROOT

SCRIPT = """
import warnings
from config.console import quiet_libraries
quiet_libraries()
quiet_libraries()
from transformers.utils import logging
from datasets.utils.logging import is_progress_bar_enabled
import logging as plain
for i in range(3):
    logging.get_logger("transformers.models").warning("the same words")
    plain.getLogger("trl.trainer").warning("of another library")
    logging.get_logger("transformers.models").warning(f"words {i}")
    warnings.warn("from a module")
print(logging.is_progress_bar_enabled(), is_progress_bar_enabled())
"""


def test_outside_a_terminal_there_are_no_bars_and_each_warning_comes_once():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False"], done.stderr
    counts = {words: done.stderr.count(words) for words in ("the same words", "of another library", "from a module")}
    assert set(counts.values()) == {1}, done.stderr
    assert [f"words {i}" in done.stderr for i in range(3)] == [True] * 3


INTERRUPTED = """
import os, signal
from config.console import one_sentence_after_ctrl_c
with one_sentence_after_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ctrl_c_is_one_sentence_of_the_first_process(rank):
    process = {"cwd": ROOT, "env": os.environ | {"RANK": rank}, "preexec_fn": heed_interrupts, "timeout": 100}
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], **process, capture_output=True, text=True)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("interrupted, without saving: --resume auto goes on") == (rank == "0")
