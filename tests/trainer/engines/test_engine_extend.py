"""Further answers below the thoughts of trees that are complete: from what the engine kept, at no other cost."""

import pytest
import torch
from engine_cases import assert_dense, assert_sound, encode, engine, grow

from trainer.policies.thought_answer import ThoughtAnswerPolicy


def policy(extends=True) -> ThoughtAnswerPolicy:
    return ThoughtAnswerPolicy(3, 2, max_thought_length=24, max_answer_length=6, thought_end="o", extends=extends)


def closed(tree) -> list[int]:
    return [i for i, node in enumerate(tree.nodes) if node.kind == "thought" and node.status == "ok"]


def extended(setup, prompts, counts, **options):
    """The engine, and its trees before (as lengths) and after they got `counts` further answers each."""
    grower, wanted = engine(setup, **options), policy()
    trees = grow(grower, prompts, wanted)
    before = [len(tree.nodes) for tree in trees]
    grower.extend([(tree, one) for tree, n in zip(trees, counts, strict=True) for one in wanted.further(tree, n)])
    return grower, before, trees


@pytest.mark.parametrize("options", [{}, {"max_prompts": 1}])
def test_further_answers_cost_their_own_tokens_and_nothing_else(tiny_text, options):
    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8, 5)]
    grower, before, trees = extended(tiny_text, prompts, [5, 0, 1], **options)
    grown = [tree.nodes[count:] for tree, count in zip(trees, before, strict=True)]
    assert [len(nodes) for nodes in grown] == [5 if closed(trees[0]) else 0, 0, 1 if closed(trees[2]) else 0]
    assert sum(map(len, grown)) > 0
    assert grower.stats["generated_tokens"] == sum(len(node.token_ids) for nodes in grown for node in nodes)
    assert grower.stats["prompt_tokens"] == grower.stats["recomputed_tokens"] == 0
    longest = max((len(node.token_ids) for nodes in grown for node in nodes), default=0)
    assert grower.stats["steps"] <= len(trees) * longest, "no pass over a prompt or a thought"
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_sound(tree, grower.eos_ids)
        assert_dense(tiny_text, prompt, tree)


def test_further_answers_see_the_pictures_of_the_prompt(tiny_vlm):
    prompts = [encode(tiny_vlm[0], "where", (84, 56)), encode(tiny_vlm[0], "what")]
    _, before, trees = extended(tiny_vlm, prompts, [4, 3])
    assert sum(len(tree.nodes) for tree in trees) > sum(before)
    for prompt, tree in zip(prompts, trees, strict=True):
        assert_dense(tiny_vlm, prompt, tree)


def test_keeping_changes_no_tree(tiny_text):
    prompts = [encode(tiny_text[0], "x" * n) for n in (3, 8)]
    plain, kept = (grow(engine(tiny_text), prompts, policy(extends)) for extends in (False, True))
    assert [[node.token_ids for node in tree.nodes] for tree in plain] == [
        [node.token_ids for node in tree.nodes] for tree in kept
    ]


def test_buffers_of_live_rows_are_freed_while_trees_wait(tiny_text):
    grower = engine(tiny_text)
    grow(grower, [encode(tiny_text[0], "xyz")], policy())
    (growth,) = grower._kept
    assert all(layer._key_room.numel() == 0 for layer in growth.forward.cache.layers)
    grower.extend([])
    assert grower._kept == []


def test_answers_are_spread_over_closed_thoughts_and_an_open_one_gets_none(tiny_text):
    wanted = policy()
    (tree,) = grow(engine(tiny_text), [encode(tiny_text[0], "xyz")], wanted)
    open_ended = [i for i, node in enumerate(tree.nodes) if node.status == "unclosed"]
    branches = wanted.further(tree, 4)
    assert sum(branch.segment.count for branch in branches) == (4 if closed(tree) else 0)
    assert not {branch.node for branch in branches} & set(open_ended)
    counts = [branch.segment.count for branch in branches]
    assert max(counts) - min(counts) <= 1
    for node in closed(tree):
        tree.nodes[node].status = "unclosed"
    assert wanted.further(tree, 4) == []


def test_the_same_seed_gives_the_same_further_answers(tiny_text):
    def tokens():
        torch.manual_seed(3)
        _, _, trees = extended(tiny_text, [encode(tiny_text[0], "abc")], [4])
        return [node.token_ids for node in trees[0].nodes]

    assert tokens() == tokens()
