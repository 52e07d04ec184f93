"""Two processes whose rows need different numbers of cuts wait for each other and update alike."""

import pytest
import torch
from on_two_processes import run_on_two_processes


@pytest.mark.slow
def test_cuts_on_one_process_only_change_no_weight(tmp_path):
    """DDP syncs buffers in every forward pass: with unequal numbers of passes this run would hang."""
    ends = {}
    for how in ("cut", "whole"):
        folder = tmp_path / how
        folder.mkdir()
        run_on_two_processes("tests/support/cut_rows_case.py", folder, how, timeout=180)
        ends[how] = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    assert [end["plans"][0] > 1 for end in ends["cut"]] == [True, False]
    assert [end["plans"][0] for end in ends["whole"]] == [1, 1]
    for name, weight in ends["whole"][0]["weights"].items():
        for end in ends["cut"]:
            assert (end["weights"][name] - weight).abs().max() < 1e-6, name
