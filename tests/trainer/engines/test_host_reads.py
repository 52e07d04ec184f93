"""A decoding step makes the host wait once: for what was sampled. Forks and rows that leave upload one tensor."""

import pytest
import torch
from engine_cases import encode, engine
from host_reads import HostReads

from trainer.engines.batch_forward import BatchForward
from trainer.engines.sampling import Sampling
from trainer.policies.chain import ChainPolicy
from trainer.policies.policy import Policy
from trainer.policies.segment import Segment, Split
from trainer.policies.thought_answer import ThoughtAnswerPolicy

STEPS = 100


class Halving(Policy):
    """Chains whose rows split at every tenth token, two by two."""

    splits, leaves = True, 16

    def start(self):
        return Segment("segment", 2, STEPS + 1)

    def candidates(self, entropies, logprobs):
        return entropies > -1

    def split(self, tree, node, token_ids, entropy, logprob):
        return Split(2) if len(token_ids) == 10 and len(tree.nodes) < 30 else None


@pytest.fixture
def counted(monkeypatch):
    """Grows trees; returns (reads, uploads, forks, rows that left) of each step after the prefill."""

    def count(grower, prompts, policy):
        steps, before = [], {}
        real_step, real_select = BatchForward.step, BatchForward.select

        def mark(name, amount):
            before[name] = before.get(name, 0) + amount

        def step(forward, tokens):
            logits = real_step(forward, tokens)
            steps.append((list(reads.reads), list(reads.uploads), before.pop("moves", 0)))
            reads.reads.clear(), reads.uploads.clear()
            return logits

        def select(forward, sources):
            mark("moves", 1)
            return real_select(forward, sources)

        monkeypatch.setattr(BatchForward, "step", step)
        monkeypatch.setattr(BatchForward, "select", select)
        torch.manual_seed(0)
        with HostReads() as reads:
            grower.grow(prompts, policy, [str(i) for i in range(len(prompts))])
        return steps[1:]

    return count


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0), Sampling(top_k=20, top_p=0.9, min_p=0.01)],
    ids=["plain", "greedy", "narrowed"],
)
def test_a_step_is_read_once_and_uploads_nothing(tiny_vlm, counted, sampling):
    prompts = [encode(tiny_vlm[0], "a" * n, (56, 56)) for n in (3, 9)]
    grower = engine(tiny_vlm, sampling)
    grower.eos_ids = [grower.model.config.get_text_config().vocab_size - 1]
    steps = counted(grower, prompts, ChainPolicy(4, STEPS + 1))
    quiet = [(reads, uploads) for reads, uploads, moves in steps if not moves]
    assert len(quiet) > STEPS // 2
    for reads, uploads in quiet:
        assert reads == ["cpu"], reads
        assert not uploads, uploads


def test_splits_are_read_together_and_upload_one_index(tiny_text, counted):
    steps = counted(engine(tiny_text), [encode(tiny_text[0], "a" * n) for n in (3, 9)], Halving())
    assert any(moves for *_, moves in steps)
    for reads, uploads, moves in steps:
        assert len(reads) <= 1 + (moves > 0), reads
        assert len(uploads) <= moves, uploads


def test_forks_into_answers_upload_one_index(tiny_vlm, counted):
    policy = ThoughtAnswerPolicy(2, 3, 30, 20, "e")
    policy.thought = Segment("thought", 2, 30, stop="e", distinct=True)
    policy.answer = Segment("answer", 3, 20, distinct=True)
    steps = counted(engine(tiny_vlm), [encode(tiny_vlm[0], "a" * n, (56, 56)) for n in (3, 9)], policy)
    assert any(moves for *_, moves in steps)
    for reads, uploads, moves in steps:
        assert len(reads) == 1, reads
        assert len(uploads) <= moves, uploads


def test_the_counter_sees_what_a_device_would_wait_for():
    values = torch.arange(4.0)
    with HostReads() as seen:
        values.sum().item()
        bool(values[0] > 1)
        values[values > 1]
        values.nonzero()
        values.tolist()
        values.cpu().numpy()
        values[torch.tensor([0, 1])]
    assert len(seen.reads) == 6, seen.reads
    assert seen.uploads == ["tensor"]
