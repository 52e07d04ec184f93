"""The sampler gives every process whole trees, the same in a resumed run, and reports unused prompts."""

from collections import Counter

import pytest
from trainer_cases import text_trainer

from trainer.sampler import TreeSampler


def sampler(**changes):
    plain = {"num_prompts": 12, "prompts_per_rank": 2, "leaves": 4, "ranks": 1, "repeats": 1, "sync": False}
    return TreeSampler(**{**plain, "shuffle": False, "seed": 42, **changes})


def deal(indices, ranks, rows):
    """What accelerate gives each rank: batches of `rows` in turn."""
    batches = [indices[i : i + rows] for i in range(0, len(indices), rows)]
    return [[batch for i, batch in enumerate(batches) if i % ranks == rank] for rank in range(ranks)]


def test_one_process_gets_whole_trees():
    assert list(sampler(num_prompts=4)) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_a_generation_is_repeated_for_each_micro_step_that_draws_it():
    assert list(sampler(num_prompts=2, leaves=2, repeats=3)) == [0, 0, 1, 1] * 3


def test_in_step_all_processes_hold_the_same_prompts_in_every_generation():
    ranks = deal(list(sampler(ranks=3, sync=True)), ranks=3, rows=8)
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[0][0] == [0] * 4 + [1] * 4
    assert ranks[0][5] == [10] * 4 + [11] * 4


def test_out_of_step_each_process_holds_its_own_whole_trees():
    ranks = deal(list(sampler(ranks=3)), ranks=3, rows=8)
    assert [rank[0] for rank in ranks] == [[0] * 4 + [1] * 4, [2] * 4 + [3] * 4, [4] * 4 + [5] * 4]
    for rank in ranks:
        assert all(count == 4 for batch in rank for count in Counter(batch).values())


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_length_is_what_it_yields(sync, ranks):
    drawn = sampler(num_prompts=13, ranks=ranks, sync=sync, repeats=2)
    assert len(drawn) == len(list(drawn)) > 0


def test_an_epoch_shows_every_prompt_once_but_the_left_over():
    drawn = sampler(num_prompts=7, prompts_per_rank=3, leaves=2, shuffle=True)
    assert drawn.unused == 1
    counts = Counter(drawn)
    assert len(counts) == 6
    assert set(counts.values()) == {2}


def test_epochs_leave_out_different_prompts():
    drawn = sampler(num_prompts=7, prompts_per_rank=3, leaves=2, shuffle=True)
    left_out = set()
    for epoch in range(8):
        drawn.set_epoch(epoch)
        left_out |= set(range(7)) - set(drawn)
    assert len(left_out) > 1


def test_set_epoch_reshuffles():
    drawn = sampler(shuffle=True)
    first = list(drawn)
    drawn.set_epoch(1)
    assert list(drawn) != first
    assert sorted(drawn) == sorted(first)


def test_a_resumed_run_sees_the_order_of_the_uninterrupted_one():
    one, other = sampler(shuffle=True), sampler(shuffle=True)
    list(one)
    one.set_epoch(3)
    other.set_epoch(3)
    assert list(one) == list(other)


def test_the_order_depends_on_the_seed_and_not_on_torchs_generator():
    import torch

    torch.manual_seed(1)
    first = list(sampler(shuffle=True))
    torch.manual_seed(2)
    assert list(sampler(shuffle=True)) == first
    assert list(sampler(shuffle=True, seed=43)) != first


def test_unshuffled_is_the_order_of_the_file_in_every_epoch():
    drawn = sampler()
    drawn.set_epoch(5)
    assert list(drawn)[::4] == list(range(12))


@pytest.mark.parametrize(("sync", "needed"), [(True, 3), (False, 6)])
def test_too_few_prompts_is_an_error_and_not_zero_steps(sync, needed):
    with pytest.raises(ValueError, match=f"has 2 prompts, but one generation needs {needed} .*add records, or lower"):
        sampler(num_prompts=2, prompts_per_rank=3, ranks=2, sync=sync)


def test_the_prompt_order_is_the_data_seeds_and_nothing_elses(tiny_text, tmp_path):
    """TRL's own sampler ignores data_seed."""

    def order(**changes):
        trainer = text_trainer(tiny_text, tmp_path, rows=12, shuffle_dataset=True, **changes)
        return list(trainer._get_train_sampler())

    first = order(data_seed=1, seed=7)
    assert sorted(set(first)) == list(range(12))
    assert order(data_seed=1, seed=8) == first
    assert order(data_seed=2, seed=7) != first
