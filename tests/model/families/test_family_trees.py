"""Trees with tools that answer in pictures, forks inside nodes and late branches, for every kind of family."""

import threading

import pytest
import torch
from engine_cases import assert_dense, assert_sound, encode, engine, grow
from family_cases import built
from family_runs import NAMES, prompts_of
from picture_cases import noise
from transformers import Llama4ForCausalLM, Llama4TextConfig

from trainer.engines import batch_forward
from trainer.engines.batch_forward import forking_cost
from trainer.engines.transformers_engine import TransformersEngine
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Observed, Segment, Split
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.tree import PROMPT


class Tools(Policy):
    """Two chains of three steps: a picture answers the first step and a text the second; one early fork, late branches.

    The fork inside the first node leaves its upper half at a place where no row ever stops.
    """

    leaves = 0
    expands = splits = True

    def __init__(self, module):
        self.module, self.asked, self.lock = module, {}, threading.Lock()

    def start(self):
        return Segment("step", 2, 8)

    def next(self, tree, node, ended):
        if ended == "observed":
            return Segment("step", 1, 6)
        seen = sum(tree.nodes[i].kind == "observation" for i in tree.path(node))
        return Call(lambda: self.observe(seen, node)) if seen < 2 and ended != "eos" else None

    def observe(self, seen: int, node: int) -> Observed:
        with self.lock:  # fast tokenizers are not thread-safe while they encode
            return self._observe(seen, node)

    def _observe(self, seen: int, node: int) -> Observed:
        if seen == 1:
            return Observed(self.module.tokenizer.encode("so it goes", add_special_tokens=False))
        picture = {"type": "image", "image": noise(node, 60 + 40 * (node % 2), 90)}
        encoded = self.module.encode_observation([{"type": "text", "text": "you see "}, picture])
        return Observed(list(encoded.ids), media=encoded)

    def candidates(self, entropies, logprobs):
        return entropies > -1

    def split(self, tree, node, token_ids, entropy, logprob):
        return Split(2) if len(token_ids) == 4 and len(tree.nodes) == 2 and node == 0 else None

    def expand(self, tree):
        self.asked[tree.prompt_id] = self.asked.get(tree.prompt_id, 0) + 1
        last = len(tree.nodes) - 1
        rounds = {1: (PROMPT, 0, 1), 2: (0, last)}
        return [Branch(node, Segment("answer", 2, 5)) for node in rounds.get(self.asked[tree.prompt_id], ())]


def assert_trees(name: str) -> tuple[TransformersEngine, float]:
    """Trees of a text and of two pictures; the engine that grew them, and the largest gap."""
    module, _, processor = built(name)
    prompts = [prompts_of(module)[0], prompts_of(module)[2]]
    grower = engine(built(name))
    trees = grow(grower, prompts, Tools(module))
    gaps = []
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_sound(tree, module.eos_token_ids(processor))
        gaps.append(assert_dense(built(name), prompt, tree))
    observed = [node for tree in trees for node in tree.nodes if node.kind == "observation"]
    assert any(node.media for node in observed) and not all(node.media for node in observed)
    return grower, max(gaps)


@pytest.mark.parametrize("name", NAMES)
def test_every_leaf_has_the_log_probs_of_a_row_of_its_own(name, record_property):
    grower, gap = assert_trees(name)
    record_property("gap", gap)
    # Where the logits were not kept, a branch feeds the last token of its node again: after each tree's upper half, and
    # after the step that a tool answered. A recurrent state is kept at the ends of rows alone, so that the branch from
    # the upper half is fed all of it.
    again = grower.stats["recomputed_tokens"]
    assert again > 4 if name in ("qwen3_5", "lfm2_vl") else again == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_5", "gemma3", "llava_onevision"])
def test_a_cache_that_cannot_be_forked_is_filled_again(name, monkeypatch):
    """Every kind of layer counts as one that the engine cannot fork: the trees are as exact, and cost more."""
    monkeypatch.setattr(batch_forward, "FORKABLE", set())
    grower, _ = assert_trees(name)
    assert grower.stats["recomputed_tokens"] > 500
    assert "every child of a fork is fed its prompt and its path again" in forking_cost(grower.model)


def test_chunked_attention_is_fed_again(tiny_text):
    """Llama 4's text model, with chunks shorter than the rollout."""
    module, _, processor = tiny_text
    config = Llama4TextConfig(
        vocab_size=len(processor),
        hidden_size=32,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=2,
        attention_chunk_size=8,
        initializer_range=0.2,
    )
    assert set(config.layer_types) == {"chunked_attention", "full_attention"}
    torch.manual_seed(0)
    model = Llama4ForCausalLM(config).eval()
    setup = module, model, processor
    prompts = [encode(module, "x" * n) for n in (3, 17)]
    for prompt, tree in zip(prompts, grow(engine(setup), prompts, ThoughtAnswerPolicy(2, 2, 20, 20, "e")), strict=True):
        assert_dense(setup, prompt, tree)
    assert "chunked_attention layers cannot be forked" in forking_cost(model)


def test_the_cost_of_copied_states_is_told():
    assert forking_cost(built("qwen2_vl")[1]) is None
    assert "forks copy the state of 3 of 4 layers" in forking_cost(built("lfm2_vl")[1])
