"""Trees by requests, on a serving engine that keeps nothing: each log-probability is that of a pass from scratch."""

import warnings

import pytest
import torch
from dense_requests import request_engine
from engine_cases import assert_dense, assert_sound, encode, grow

from trainer.engines.prefix_use import cache_sums
from trainer.engines.request_sampler import RequestSampler
from trainer.engines.requests import Draw, FirstToken
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Observed, Segment, Split
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.tree import PROMPT


class Busy(Policy):
    """Steps that split, call a tool, and get a branch at the prompt once all have ended."""

    leaves, expands, splits = 5, True, True

    def __init__(self, module):
        self.module, self.expanded = module, set()

    def start(self):
        return Segment("step", 2, 8, stop="e", distinct=True, temperature=1.3)

    def next(self, tree, node, ended):
        if ended == "observed":
            return Segment("answer", 2, 5, top_k=3)
        first = tree.nodes[node].kind == "step" and not any(one.kind == "observation" for one in tree.nodes)
        return Call(lambda: Observed(self.module.tokenizer.encode("so it is"))) if first and ended != "eos" else None

    def candidates(self, entropies, logprobs):
        return entropies > 0

    def split(self, tree, node, token_ids, entropy, logprob):
        return Split(2) if len(token_ids) == 3 and len(tree.nodes) < 4 else None

    def expand(self, tree):
        new = tree.prompt_id not in self.expanded
        self.expanded.add(tree.prompt_id)
        return [Branch(PROMPT, Segment("segment", 1, 4, group=9))] if new else []


def test_forks_calls_and_branches_equal_a_dense_pass(tiny_text):
    engine = request_engine(tiny_text)
    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 9)]
    for prompt, tree in zip(prompts, grow(engine, prompts, Busy(tiny_text[0])), strict=True):
        assert_sound(tree, engine.eos_ids)
        steps = [node for node in tree.nodes if node.kind == "step"]
        assert len({node.token_ids[0] for node in steps if node.parent == PROMPT}) >= 2
        assert {"step", "observation", "segment"} <= {node.kind for node in tree.nodes}
        for node in tree.nodes:
            if node.kind == "answer":
                node.sampled = False  # its distribution is narrowed by top_k
        assert_dense(tiny_text, prompt, tree, temperature=lambda node: 1.3 if node.kind == "step" else 1.0)
    assert engine.stats["forks"] >= 2 and engine.stats["calls"] >= 2
    assert not engine.requests.running


def test_a_tree_depends_neither_on_its_neighbours_nor_on_how_many_grow_together(tiny_text):
    prompts = [encode(tiny_text[0], "x" * n) for n in (5, 2, 7)]
    policy = ThoughtAnswerPolicy(2, 2, 10, 6, "e")
    together = grow(request_engine(tiny_text), prompts, policy)
    assert grow(request_engine(tiny_text), prompts[:1], policy)[0].nodes == together[0].nodes
    assert grow(request_engine(tiny_text, max_prompts=1), prompts, policy) == together
    assert grow(request_engine(tiny_text), prompts, policy, seed=1) != together


def test_answers_do_not_wait_for_other_thoughts(tiny_text):
    engine = request_engine(tiny_text)
    (tree,) = grow(engine, [encode(tiny_text[0], "abc")], ThoughtAnswerPolicy(4, 3, 40, 5, "e"))
    lengths = sorted(len(node.token_ids) for node in tree.nodes if node.kind == "thought")
    assert lengths[0] < lengths[-1]
    assert engine.stats["steps"] <= max(lengths) + 5


def test_what_the_cache_should_find_is_what_it_finds(tiny_text):
    """Sent, cached and computed tokens, against a cache without evictions."""
    engine = request_engine(tiny_text)
    prompts = [encode(tiny_text[0], "x" * n) for n in (5, 2)]
    trees = grow(engine, prompts, ThoughtAnswerPolicy(3, 2, 12, 6, "e"))
    stats = engine.stats
    answers = sum(node.kind == "answer" for tree in trees for node in tree.nodes)
    assert stats["requests"] == 6 + answers
    assert stats["sent_tokens"] == stats["cached_tokens"] + stats["computed_tokens"]
    # prompts share the template's first tokens too, and branches may begin alike: what is told is the least
    assert stats["reusable_tokens"] <= stats["cached_tokens"] < stats["sent_tokens"]
    assert stats["recomputed_tokens"] < stats["requests"] * engine.requests.block_size
    sizes = {1: 0, 10**6: 0}
    for size in sizes:
        engine.requests.block_size = size
        grow(engine, prompts, ThoughtAnswerPolicy(3, 2, 12, 6, "e"))
        sizes[size] = engine.stats["reusable_tokens"]
    assert sizes[1] > stats["reusable_tokens"] > sizes[10**6] == 0


@pytest.mark.parametrize("cached", [100, 10])
def test_a_cache_that_loses_tokens_warns(cached):
    class Engine:
        totals = {
            "requests": 4, "sent_tokens": 150, "cached_tokens": cached, "computed_tokens": 150 - cached,
            "reusable_tokens": 100,
        }  # fmt: skip

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sums = cache_sums(Engine)
    assert sums["vllm/cached_share"] == (cached, 150) and sums["vllm/found_share"] == (cached, 100)
    assert [f"held {cached} of 100 tokens" in str(one.message) for one in told] == ([] if cached == 100 else [True])
    assert cache_sums(object()) == {}


def test_an_error_leaves_no_request_running(tiny_text):
    engine = request_engine(tiny_text)

    def progress(count):
        if count > 5:
            raise KeyboardInterrupt

    engine.progress = progress
    with pytest.raises(KeyboardInterrupt):
        grow(engine, [encode(tiny_text[0], "abc")], ThoughtAnswerPolicy(3, 2, 12, 6, "e"))
    assert not engine.requests.running


def test_extended_trees_equal_a_dense_pass(tiny_text):
    engine, prompt = request_engine(tiny_text), encode(tiny_text[0], "abc")
    (tree,) = grow(engine, [prompt], ThoughtAnswerPolicy(2, 1, 10, 6, "e", extends=True))
    thought = next(i for i, node in enumerate(tree.nodes) if node.kind == "thought")
    count = len(tree.nodes)
    engine.extend([(tree, Branch(thought, Segment("answer", 3, 6)))])
    assert [node.parent for node in tree.nodes[count:]] == [thought] * 3
    assert_dense(tiny_text, prompt, tree)
    assert engine.totals["requests"] > engine.stats["requests"] == 3


def drawn(logits, **own):
    usual = {"seed": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    draws = [Draw(**usual | own | {"seed": seed}) for seed in range(len(logits))]
    return RequestSampler([])(logits, draws, [0] * len(logits), lambda row: [])


def test_tokens_are_drawn_with_their_probabilities():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    tokens, logprobs, entropies = drawn(probs.log().expand(20_000, -1), temperature=1.0)
    counts = torch.bincount(tokens, minlength=4) / len(tokens)
    torch.testing.assert_close(counts, probs, atol=0.012, rtol=0)
    torch.testing.assert_close(logprobs, probs[tokens].log())
    assert entropies[0].item() == pytest.approx(torch.distributions.Categorical(probs).entropy().item(), abs=1e-6)


def test_siblings_with_distinct_first_tokens_are_a_draw_without_replacement():
    """The first is a plain draw; all differ, none is taken, and who is left without one draws on its own."""
    probs, firsts = torch.tensor([0.5, 0.3, 0.15, 0.05]), []
    for race in range(600):
        draws = [Draw(race * 10 + rank, 1.0, 0, 1.0, 0.0, 1.0, FirstToken(race, rank, (3,))) for rank in range(4)]
        tokens = RequestSampler([])(probs.log().expand(4, -1), draws, [0] * 4, lambda row: [])[0].tolist()
        assert sorted(tokens[:3]) == [0, 1, 2]
        firsts.append(tokens[0])
    share = torch.bincount(torch.tensor(firsts), minlength=4) / len(firsts)
    torch.testing.assert_close(share, torch.tensor([0.5, 0.3, 0.15, 0.0]) / 0.95, atol=0.07, rtol=0)


def test_rows_with_other_settings_do_not_change_each_other():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    plain = {"seed": 3, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    others = [{}, {"top_p": 0.5}, {"temperature": 0.0}, {"repetition_penalty": 5.0}, {"top_k": 1}, {"min_p": 0.9}]
    draws = [Draw(**plain | other) for other in others]
    sampler, path = RequestSampler([7]), lambda row: [1, 2, 3]
    together = sampler(logits, draws, [4] * 6, path)
    for row in range(6):
        alone = sampler(logits[row : row + 1], draws[row : row + 1], [4], path)
        assert [values[row].item() for values in together] == pytest.approx([values[0].item() for values in alone])
    assert 7 not in together[0].tolist()
