"""Media are read once a prompt and generation, ahead of their use, and what is wrong with them shows where used."""

import json
import threading

import pytest
from trainer_cases import demo_rows, random_tree, script, text_rows, text_trainer, vlm_trainer

from dataset.media import MediaError
from trainer.prompts import PromptEncoder, PromptError
from trainer.sampler import TreeSampler


class Module:
    """Encodes nothing; remembers which thread asked."""

    def __init__(self):
        self.threads = []

    def encode(self, messages, images, videos):
        self.threads.append(threading.current_thread().name)

        class Prompt:
            ids = [1, 2, 3]

        return Prompt()


@pytest.fixture
def encoder():
    return PromptEncoder(Module(), 100, "error", "error")


def missing_picture() -> dict:
    row = text_rows(1)[0]
    return {**row, "record": json.dumps(json.loads(row["record"]) | {"images": ["/nowhere/a.png"]})}


def test_what_was_read_ahead_is_not_read_again(encoder):
    rows = list(text_rows(3))
    encoder.prefetch(rows)
    prompts = [encoder.encode(row) for row in rows]
    assert len(encoder.module.threads) == 3
    assert all(name.startswith("prompts") for name in encoder.module.threads)
    assert len({id(prompt) for prompt in prompts}) == 3
    encoder.encode(rows[0])
    assert len(encoder.module.threads) == 4, "a prompt serves one generation"


def test_a_wrong_guess_costs_nothing_but_time(encoder):
    first, second = text_rows(2)
    encoder.prefetch([first])
    assert encoder.encode(second).ids == [1, 2, 3]
    encoder.prefetch([])
    assert encoder._ahead == {}


def test_an_error_shows_where_the_prompt_is_used(encoder):
    encoder.prefetch([missing_picture()])
    with pytest.raises(MediaError, match=r"record 'row-0'.*nowhere"):
        encoder.encode(missing_picture())


def test_a_skipped_prompt_is_announced_when_it_is_used(capsys):
    encoder = PromptEncoder(Module(), 100, "error", "skip")
    encoder.prefetch([missing_picture()])
    assert encoder.skipped == {}
    assert encoder.encode(missing_picture()) is None
    assert list(encoder.skipped) == ["row-0"]
    assert capsys.readouterr().out.startswith("skipped: record 'row-0'")


def test_a_budget_below_one_path_names_the_record_and_the_ways_out():
    encoder = PromptEncoder(Module(), 100, "error", "error", max_slots=11, completion=10)
    sentence = r"row-0: its prompt of 3 tokens .* completion of 10 needs 12 slots, and max_slots=11 .* raise max_slots"
    with pytest.raises(PromptError, match=sentence):
        encoder.encode(text_rows(1)[0])
    assert PromptEncoder(Module(), 100, "error", "error", max_slots=12, completion=10).encode(text_rows(1)[0])


@pytest.mark.parametrize("sync", [True, False])
def test_the_sampler_foretells_what_each_process_gets(sync):
    """Over two epochs, against the order the batches are dealt in."""
    sampler = TreeSampler(11, 2, leaves=3, ranks=2, repeats=2, sync=sync, shuffle=True, seed=1)
    dealt = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        batches = [indices[i : i + 6] for i in range(0, len(indices), 6)]  # of one process: two trees of three rows
        generations = [batches[i : i + 2] for i in range(0, len(batches), 4)]  # the first of the two repeats
        dealt += [[batch[::3] for batch in generation] for generation in generations]
    assert len(dealt) > 2
    assert [[sampler.prompts_of(g, rank) for rank in range(2)] for g in range(len(dealt))] == dealt


def test_the_trainer_reads_every_generation_but_the_first_ahead(tiny_text, tmp_path, monkeypatch):
    """Three prompts, one per generation, two updates on each, shuffled: six generations are two epochs."""
    script(monkeypatch, random_tree)
    random_tree.calls = 0
    changes = {"max_steps": 12, "num_iterations": 2, "shuffle_dataset": True, "num_train_epochs": 9}
    trainer = text_trainer(tiny_text, tmp_path, rows=3, **changes)
    ahead = []
    original = trainer.encoder.encode
    trainer.encoder.encode = lambda row: ahead.append(row["record"] in trainer.encoder._ahead) or original(row)
    trainer.train()
    assert ahead == [False] + [True] * 5
    assert trainer.encoder._ahead == {}, "nothing is read for a generation that never comes"


def test_a_picture_is_decoded_once_a_prompt_and_generation(tiny_vlm, tmp_path, monkeypatch):
    """Two prompts per generation, four rows each, two generations, the first used twice."""
    script(monkeypatch, random_tree)
    random_tree.calls = 0
    changes = {"max_steps": 4, "num_iterations": 2, "per_device_train_batch_size": 8, "beta": 0.1}
    trainer = vlm_trainer(tiny_vlm, tmp_path, rows=demo_rows(4), **changes)
    trainer.train()
    assert trainer.encoder.media_loads == 4
