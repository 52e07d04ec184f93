"""The block mask of a packed forest: torch's own, without the N x N matrix, and compiled at most twice."""

import random
import subprocess
import sys

import pytest
import torch
from paths import ROOT
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import create_block_mask

from trainer.logprobs.block_mask import BLOCK, tree_block_mask
from trainer.logprobs.tree_attention import compiled_flex


def forest(slots: int, leave: float, rng: random.Random) -> torch.Tensor:
    """(N,) `subtree_end` of a random forest in depth-first order; a slot is left with probability `leave` each."""
    ends, path = [slots] * slots, []
    for slot in range(slots):
        while path and rng.random() < leave:
            ends[path.pop()] = slot
        path.append(slot)
    return torch.tensor(ends)


def listed(mask, counts: str, indices: str) -> list[set[int]]:
    counts, indices = getattr(mask, counts)[0, 0], getattr(mask, indices)[0, 0]
    return [set(row[:count].tolist()) for row, count in zip(indices, counts, strict=True)]


def check(count: int, seed: int) -> int:
    """Compares masks of random forests; returns how many full blocks there were, so that both kinds occur."""
    rng, full = random.Random(seed), 0
    for _ in range(count):
        ends = forest(round(2 ** rng.uniform(0, 12)), rng.choice([0.1, 0.01, 0.002, 0.0005]), rng)

        def sees(batch, head, query, key, ends=ends):
            return (key <= query) & (query < ends[key])

        ours, theirs = tree_block_mask(ends), create_block_mask(sees, None, None, len(ends), len(ends), device="cpu")
        for kind in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
            assert listed(ours, *kind) == listed(theirs, *kind), len(ends)
        assert ours.seq_lengths == theirs.seq_lengths
        full += int(theirs.full_kv_num_blocks.sum())
    return full


def test_random_forests_have_torchs_own_block_mask():
    assert check(40, seed=0) > 0


@pytest.mark.slow
def test_a_thousand_random_forests():
    assert check(1000, seed=1) > 0


def test_its_memory_is_that_of_the_blocks():
    """At 65,536 slots, where the matrix has 4 GiB of flags; the peak of the process grows by less than 50 MB."""
    code = """
import resource, torch
from trainer.logprobs.block_mask import tree_block_mask
torch.set_num_threads(1)
tree_block_mask(torch.full((256,), 256))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mask = tree_block_mask(torch.full((65536,), 65536))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, mask.kv_num_blocks.numel())
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    grown, blocks = map(int, run.stdout.split())
    assert blocks == 65536 // BLOCK
    assert grown < 50 * 1024


@pytest.mark.slow
def test_flex_attention_is_compiled_once_for_all_lengths_in_each_mode():
    torch._dynamo.reset()
    counter, rng = CompileCounter(), random.Random(0)
    attend = compiled_flex(counter)
    for grad in (False, True):
        for slots in (384, 512, 768, 1280, 2048, 640, 3072, 1024, 896, 1408):
            query, key, value = torch.randn(1, 4, slots, 32), *torch.randn(2, 1, 2, slots, 32)
            with torch.set_grad_enabled(grad):  # the CPU has no backward: the inputs need no gradient
                attend(query, key, value, block_mask=tree_block_mask(forest(slots, 0.01, rng)), enable_gqa=True)
    assert 1 <= counter.frame_count <= 2
