"""Trees of agent steps: how many leaves, where they branch, what stands between turns, when a path ends."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from agent_cases import Counter, Echo, ForkingCounter, ScriptedAgent, policy_of, task_of, turns

from trainer.advantages.intra_inter import intra_inter
from trainer.policies.agent.step import TreeShape
from trainer.tree import PROMPT

SEARCH, ANSWER = "<think>t</think><search>q</search>", "<think>t</think><answer>x</answer>"


def grow(policy, tiny, write, ids=("a",)):
    engine = ScriptedAgent(getattr(tiny[2], "tokenizer", tiny[2]), write)
    return engine.grow(policy, ids), engine


def text_of(tree, leaf, tokenizer):
    return tokenizer.decode(tree.tokens(leaf))


@pytest.mark.parametrize("shape", [(2, 2, 1), (1, 2, 1), (2, 1, 2), (3, 4, 2), (4, 0, 1), (4, 2, 0)])
def test_every_prompt_has_the_leaves_the_formula_says(tiny_text, shape):
    trees, branches, rounds = shape
    rng = random.Random(0)
    policy = policy_of(
        Echo, tiny_text, ids="abcde", tree_num=trees, expand_num=branches, expand_rounds=rounds, max_turns=3
    )
    write = lambda tree, parent: rng.choice([SEARCH, ANSWER, "nonsense"])  # noqa: E731
    grown, _ = grow(policy, tiny_text, write, "abcde")
    assert policy.leaves == trees * (rounds * branches + 1)
    for tree in grown:
        leaves = tree.leaves()
        assert len(leaves) == policy.leaves
        groups = [tree.nodes[leaf].group for leaf in leaves]
        assert sorted(groups) == sorted(list(range(trees)) * (rounds * branches + 1))


@pytest.mark.parametrize("shape", [(2, 2, 1, 2), (1, 1, 2, 3), (3, 2, 1, 1)])
def test_a_chosen_node_may_get_several_branches(tiny_text, shape):
    trees, nodes, rounds, each = shape
    sizes = {"tree_num": trees, "expand_num": nodes, "expand_rounds": rounds, "branches_per_node": each}
    policy = policy_of(Echo, tiny_text, max_turns=3, **sizes)
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH, SEARCH, ANSWER))
    assert policy.leaves == len(tree.leaves()) == trees * (rounds * nodes * each + 1)


def test_the_tree_of_two_branches_at_one_node(tiny_text):
    """M, N, L, B = 1, 1, 1, 2 on a chain of one search: it can branch after its observation alone."""
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=1, expand_rounds=1, branches_per_node=2)
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH, ANSWER))
    expected = [("step", -1), ("observation", 0), ("step", 1), ("step", 1), ("step", 1)]
    assert [(node.kind, node.parent) for node in tree.nodes] == expected
    assert (tree.leaves(), policy.leaves) == ([2, 3, 4], 3)
    rewards, groups = np.array([1.0, 0.0, 0.0]), np.zeros(3, dtype=int)
    std = 3**-0.5  # of 1, 0, 0 about their mean 1/3
    one = np.array([2, -1, -1]) / 3 / (std + 1e-4)
    assert intra_inter(rewards, groups, groups) == pytest.approx(2 * one)  # its tree is its prompt's only one


def test_a_completion_reads_as_the_turns_and_their_observations(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=1)
    (tree,), engine = grow(policy, tiny_text, turns(SEARCH, SEARCH, ANSWER))
    wanted = f"{SEARCH}\n\n<information>found q</information>\n\n" * 2 + ANSWER
    for leaf in tree.leaves():
        assert text_of(tree, leaf, tiny_text[2]) == wanted
    assert [node.sampled for node in tree.nodes] == [node.kind == "step" for node in tree.nodes]
    assert engine.segments[0].stops == ("</search>", "</answer>")


def test_a_turn_goes_on_at_a_tag_inside_its_thought(tiny_text):
    """The engine asks at each stop string, with what has been sampled of the turn."""
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=1)
    spell = lambda text: tiny_text[2](text, add_special_tokens=False)["input_ids"]  # noqa: E731
    goes_on = policy.start().goes_on
    assert goes_on(spell("<think>perhaps <search>a</search>")) and goes_on(spell("<think><answer>a</answer>"))
    assert not goes_on(spell("<think>the <search> tool</think><search>q</search>"))
    turn = "<think>perhaps <search>a</search></think><search>q</search>"
    (tree,), _ = grow(policy, tiny_text, turns(turn, ANSWER))
    assert "found q<" in text_of(tree, 1, tiny_text[2])


def test_branches_start_after_whole_steps_that_are_no_leaf(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=2, expand_num=2)
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH, SEARCH, ANSWER))
    first = {i for i, node in enumerate(tree.nodes) if node.parent == PROMPT}
    assert len(first) == 2, "no chain but the two that were started"
    for node in tree.nodes:
        siblings = [other for other in tree.nodes if other.parent == node.parent]
        if len(siblings) > 1 and node.parent != PROMPT:
            assert tree.nodes[node.parent].kind == "observation"
    # Two candidates and two branches per tree: without replacement each gets one.
    forks = [i for i in range(len(tree.nodes)) if sum(node.parent == i for node in tree.nodes) == 2]
    assert len(forks) == 4


def test_with_more_branches_than_steps_every_step_is_taken_before_one_is_taken_twice(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=5)
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH, SEARCH, SEARCH, ANSWER))
    children = [sum(node.parent == i for node in tree.nodes) for i in range(len(tree.nodes))]
    first_chain = [i for i in tree.path(tree.leaves()[0]) if tree.nodes[i].kind == "observation"]
    assert sum(children[i] - 1 for i in first_chain) == 5 and min(children[i] for i in first_chain) >= 2


def test_a_chain_that_answers_at_once_gets_fresh_chains_in_its_group(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=2, expand_num=2)
    (tree,), _ = grow(policy, tiny_text, turns(ANSWER))
    assert [node.parent for node in tree.nodes] == [PROMPT] * 6
    assert [node.group for node in tree.nodes] == [0, 1, 0, 0, 1, 1]
    assert policy.metrics([tree])["agent/one_turn_share"] == (6, 6)


def test_the_released_codes_choice_takes_the_prompt_too_and_with_replacement(tiny_text):
    torch.manual_seed(0)
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=400, fork_choice="code")
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH, ANSWER))
    fresh = sum(node.parent == PROMPT for node in tree.nodes) - 1
    assert 150 < fresh < 250, "the prompt and the one step are equally likely"


def test_expand_root_takes_the_prompt_once_and_the_step_once(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=2, expand_root=True)
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH, ANSWER))
    assert sum(node.parent == PROMPT for node in tree.nodes) == 2


def test_the_draw_of_branches_is_torchs(tiny_text):
    def parents(seed):
        torch.manual_seed(seed)
        policy = policy_of(Echo, tiny_text, tree_num=4, expand_num=1)
        (tree,), _ = grow(policy, tiny_text, turns(SEARCH, SEARCH, SEARCH, ANSWER))
        return [node.parent for node in tree.nodes]

    assert parents(1) == parents(1)
    assert len({tuple(parents(seed)) for seed in range(5)}) > 1


def test_after_the_last_turn_no_tool_is_called_and_what_is_written_is_a_leaf(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=1, max_turns=2)
    (tree,), _ = grow(policy, tiny_text, turns(SEARCH))
    for leaf in tree.leaves():
        kinds = [tree.nodes[i].kind for i in tree.path(leaf)]
        assert kinds == ["step", "observation", "step", "observation", "step"]
    assert policy.report(tree, tree.leaves()[0]) == {
        "turns": 2,
        "tool_calls": 2,
        "invalid_turns": 0,
        "tool_error": None,
    }


def test_a_turn_without_an_action_is_told_so_and_counts_as_a_turn(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=1, max_turns=1)
    (tree,), _ = grow(policy, tiny_text, turns("just words", ANSWER))
    told = tiny_text[2].decode(tree.nodes[1].token_ids)
    assert "did not act" in told and "<" not in told, "a reward must find no tag in it"
    assert tree.nodes[1].kind == "observation" and not tree.nodes[1].sampled
    assert len(tree.leaves()) == 2 and policy.metrics([tree])["agent/invalid_share"] == (1, 3)


def test_a_path_never_grows_over_its_length(tiny_text):
    rng = random.Random(1)
    for length in range(20, 200, 7):
        policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=2, length=length, max_turns=9)
        write = lambda tree, parent: rng.choice([SEARCH, "words " * 9, "<search>" + "w " * 30 + "</search>"])  # noqa: E731
        (tree,), _ = grow(policy, tiny_text, write)
        leaves = tree.leaves()
        assert len(leaves) == 3 and all(len(tree.tokens(leaf)) <= length for leaf in leaves)
        cut = [leaf for leaf in leaves if len(tree.path(leaf)) < 19]
        assert all(tree.nodes[leaf].status == "length" for leaf in cut)


def test_branches_may_have_a_temperature_of_their_own(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=2, expand_num=1, branch_temperature=1.5)
    _, engine = grow(policy, tiny_text, turns(SEARCH, SEARCH, ANSWER))
    chains = 1 + 2 * 2  # the first turns in one segment, then two turns of each of two chains
    assert [segment.temperature for segment in engine.segments[:chains]] == [None] * chains
    assert {segment.temperature for segment in engine.segments[chains:]} == {1.5}


def test_branches_may_draw_among_the_most_likely_tokens(tiny_text):
    policy = policy_of(Echo, tiny_text, tree_num=2, expand_num=1, branches_per_node=2, branch_top_k=5)
    _, engine = grow(policy, tiny_text, turns(SEARCH, SEARCH, ANSWER))
    chains = 1 + 2 * 2
    assert [(segment.temperature, segment.top_k) for segment in engine.segments[:chains]] == [(None, None)] * chains
    assert {(segment.temperature, segment.top_k) for segment in engine.segments[chains:]} == {(None, 5)}


def test_state_is_forked_or_replayed_and_siblings_do_not_touch_each_other(tiny_text):
    add = "<add>1</add>"
    for environment in (Counter, ForkingCounter):
        policy = policy_of(environment, tiny_text, tree_num=2, expand_num=2, max_turns=3)
        (tree,), _ = grow(policy, tiny_text, turns(add, add, ANSWER))
        for leaf in tree.leaves():
            told = [tiny_text[2].decode(tree.nodes[i].token_ids) for i in tree.path(leaf)][1::2]
            assert [text.strip() for text in told] == [f"<information>total {n}</information>" for n in (1, 2)]


def test_an_equal_turn_at_the_same_point_is_not_paid_twice(tiny_text):
    ForkingCounter.made = 0
    policy = policy_of(ForkingCounter, tiny_text, tree_num=2, expand_num=2)
    (tree,), _ = grow(policy, tiny_text, turns("<add>1</add>", "<add>1</add>", ANSWER))
    assert ForkingCounter.made == 2
    sums = policy.metrics([tree])
    assert sums["tool/calls"][0] == 2 and sums["tool/reused"][0] > 0 and sums["tool/replayed"][0] == 0


def test_a_branch_that_acts_otherwise_pays_only_for_the_replay_it_needs(tiny_text, monkeypatch):
    texts = iter(["<add>1</add>", "<add>1</add>", ANSWER, "<add>5</add>", ANSWER])
    Counter.made = 0
    torch.manual_seed(0)
    policy = policy_of(Counter, tiny_text, tree_num=1, expand_num=1, max_turns=3)
    monkeypatch.setattr(TreeShape, "_chosen", lambda shape, tree, group: [1])
    (tree,), _ = grow(policy, tiny_text, lambda tree, parent: next(texts))
    last = tiny_text[2].decode(tree.tokens(tree.leaves()[-1]))
    assert "total 6" in last
    assert Counter.made == 4 and policy.metrics([tree])["tool/replayed"][0] == 1


def test_how_many_forks_saw_something_else(tiny_text):
    queries = iter("abcdefghijkl")
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=2, max_turns=1)
    write = turns(SEARCH, ANSWER)
    (tree,), _ = grow(policy, tiny_text, write)
    assert policy.metrics([tree])["fork/different_observation"] == (0, 0), "all answered at once"
    policy = policy_of(Echo, tiny_text, tree_num=1, expand_num=2, max_turns=2)

    def other(tree, parent):
        return turns(SEARCH, f"<search>{next(queries)}</search>", ANSWER)(tree, parent)

    class TwiceAfterTheFirst(TreeShape):
        def chosen(self, tree):
            return [(1, 0), (1, 0)]

    policy.shape = TwiceAfterTheFirst(1, 2, 1)
    (tree,), _ = grow(policy, tiny_text, other)
    assert policy.metrics([tree])["fork/different_observation"] == (2, 2)
    assert policy_of(Echo, tiny_text).metrics([]).keys() == policy.metrics([tree]).keys()


class TestWhatDoesNotGoTogether:
    def test_a_task_without_environment(self, tiny_text):
        with pytest.raises(ValueError, match="no make_environment"):
            policy_of(None, tiny_text, tasks={"plain": task_of(None, "plain")})

    def test_environments_of_two_forms(self, tiny_text):
        class Chat(Echo):
            action_form = "tool_calls"

        with pytest.raises(ValueError, match="different forms"):
            policy_of(None, tiny_text, ids="ab", tasks={"a": task_of(Echo, "a"), "b": task_of(Chat, "b")})

    def test_an_environment_whose_settings_are_wrong_ends_the_run(self, tiny_text):
        class Picky(Echo):
            def reset(self, **row):
                raise ValueError("no such corpus")

        with pytest.raises(ValueError, match="no such corpus"):
            policy_of(Picky, tiny_text, tasks={"picky": task_of(Picky, "picky")})

    def test_a_reset_that_breaks_is_named(self, tiny_text):
        class Broken(Echo):
            def reset(self, timeout=1.0, **row):
                self._late = timeout > 0

        settings = {"tasks": {"broken": task_of(Broken, "broken")}, "environment_args": '{"timeout": "1"}'}
        with pytest.raises(
            ValueError, match=r"task/broken.py: .*reset\(\) fails on record 'a' .*'timeout': '1'.*TypeError"
        ):
            policy_of(Broken, tiny_text, **settings)

    def test_a_setting_that_no_reset_names_is_pointed_out(self, tiny_text):
        class Named(Echo):
            def reset(self, top_k=3, **row): ...

        tasks = {"named": task_of(Named, "named")}
        with pytest.warns(UserWarning, match=r"'topk' is not an argument of reset\(\) in task/named.py \(top_k\)"):
            policy_of(Named, tiny_text, tasks=tasks, environment_args='{"topk": 5}')

    def test_a_reset_that_speaks(self, tiny_text):
        class Speaking(Echo):
            def reset(self, **row):
                return "You stand in a hall."

        with pytest.raises(ValueError, match="into the record's question"):
            policy_of(Speaking, tiny_text, tasks={"speaking": task_of(Speaking, "speaking")})

    @pytest.mark.parametrize(
        ("fork", "fault"),
        [(lambda self: missing, r"_fork\(\) fails \(NameError: .*missing"), (lambda self: None, "returned None")],  # noqa: F821
    )
    def test_a_fork_that_cannot_work(self, tiny_text, fork, fault):
        forking = type("Forking", (Echo,), {"_fork": fork})
        with pytest.raises(ValueError, match=f"task/forking.py: .*{fault}"):
            policy_of(forking, tiny_text, tasks={f"forking {fault}": task_of(forking, "forking")})

    def test_an_environment_without_tools(self, tiny_text):
        class Mute:
            def reset(self, **row): ...

        with pytest.raises(ValueError, match="no public method"):
            policy_of(Mute, tiny_text, tasks={"mute": task_of(Mute, "mute")})


def test_reset_gets_the_record_and_the_runs_settings(tiny_text):
    seen = []

    class Looking(Echo):
        def reset(self, **row):
            seen.append(row)

    policy = policy_of(
        Looking, tiny_text, tasks={"looking": task_of(Looking, "looking")}, environment_args='{"top_k": 2}'
    )
    grow(policy, tiny_text, turns(SEARCH, ANSWER))
    assert seen[-1].items() >= {"id": "a", "question": "a?", "hops": 1, "top_k": 2}.items()
