"""Trees with tools that answer in pictures, forks inside nodes and late branches, for every kind of family."""

import threading

import pytest
from engine_cases import assert_dense, assert_sound, engine, grow
from family_cases import built
from family_runs import prompts_of
from picture_cases import noise
from test_family_passes import NAMES

from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Observed, Segment, Split
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


@pytest.mark.parametrize("name", NAMES)
def test_every_leaf_has_the_log_probs_of_a_row_of_its_own(name):
    module, _, processor = built(name)
    prompts = [prompts_of(module)[0], prompts_of(module)[2]]
    grower = engine(built(name))
    trees = grow(grower, prompts, Tools(module))
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_sound(tree, module.eos_token_ids(processor))
        assert_dense(built(name), prompt, tree)
    observed = [node for tree in trees for node in tree.nodes if node.kind == "observation"]
    assert any(node.media for node in observed) and not all(node.media for node in observed)
    # Where the logits were not kept, a branch feeds the last token of its node again: after each tree's upper half, and
    # after the step that a tool answered. A recurrent state is kept at the ends of rows alone, so that the branch from
    # the upper half is fed all of it.
    again = grower.stats["recomputed_tokens"]
    assert again > 4 if name in ("qwen3_5", "lfm2_vl") else again == 4
