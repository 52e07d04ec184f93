"""What libraries print in a log file: no bars, and each message once."""

import subprocess
import sys

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
