"""The forking cache against transformers' DynamicCache."""

import random
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache

from trainer.engines.batch_forward import cache_argument
from trainer.engines.kv_cache import ForkingCache

HEADS, SIZE, LAYERS = 2, 3, 2


def feed(caches, rows: int, tokens: int, generator) -> list:
    """The same random states into each cache; what each hands to the attention."""
    seen = [[] for _ in caches]
    for layer in range(LAYERS):
        keys, values = (torch.randn(rows, HEADS, tokens, SIZE, generator=generator) for _ in range(2))
        for i, cache in enumerate(caches):
            seen[i] += cache.update(keys, values, layer)
    return seen


def move(cache: ForkingCache, sources: list[int]) -> None:
    """Row i becomes a copy of the old row sources[i]."""
    targets = [target for target, source in enumerate(sources) if target != source]
    origins = [sources[target] for target in targets]
    cache.move_rows(len(sources), torch.tensor(targets, dtype=torch.long), torch.tensor(origins, dtype=torch.long))


def test_forks_and_leaving_rows_equal_the_copying_cache():
    generator, choice = torch.Generator().manual_seed(0), random.Random(0)
    ours, theirs = ForkingCache(), DynamicCache()
    feed((ours, theirs), rows := 3, 5, generator)
    for step in range(300):
        sources = choice.choice(
            [
                list(range(rows)),
                [*range(rows), *[choice.randrange(rows)] * 3],
                sorted(choice.sample(range(rows), max(rows // 2, 1))),
                [choice.randrange(rows) for _ in range(rows)],
            ]
        )
        move(ours, sources)
        theirs.batch_select_indices(torch.tensor(sources))
        rows = len(sources)
        mine, others = feed((ours, theirs), rows, 1, generator)
        assert all(torch.equal(a, b) for a, b in zip(mine, others, strict=True)), step
        assert ours.get_seq_length() == theirs.get_seq_length() == 6 + step


def test_a_step_writes_into_the_same_memory():
    generator, cache = torch.Generator().manual_seed(0), ForkingCache()
    feed((cache,), 2, 5, generator)
    feed((cache,), 2, 1, generator)
    before = cache.layers[0].keys.data_ptr()
    for _ in range(20):
        feed((cache,), 2, 1, generator)
    assert cache.layers[0].keys.data_ptr() == before


def test_rows_that_stay_are_not_copied():
    generator, cache = torch.Generator().manual_seed(0), ForkingCache()
    feed((cache,), 6, 4, generator)
    moved = []
    layer = cache.layers[0]
    real = layer.move_rows
    layer.move_rows = lambda rows, targets, sources: moved.append(targets.tolist()) or real(rows, targets, sources)
    move(cache, [0, 1, 5, 3])
    move(cache, [0, 1, 2, 3, 2, 2])
    assert moved == [[2], [4, 5]]


def test_transformers_own_ways_to_reorder_are_closed():
    cache = ForkingCache()
    feed((cache,), 2, 3, torch.Generator())
    with pytest.raises(NotImplementedError, match="move_rows"):
        cache.batch_select_indices(torch.tensor([0]))
    with pytest.raises(NotImplementedError, match="move_rows"):
        cache.batch_repeat_interleave(2)


def test_the_caches_keyword_is_read_from_the_signature():
    new = SimpleNamespace(forward=lambda input_ids, cache=None: None)
    old = SimpleNamespace(forward=lambda input_ids, past_key_values=None: None)
    assert (cache_argument(new), cache_argument(old)) == ("cache", "past_key_values")
