"""gigpo trains agents: chains of steps, a value per step, both layouts, and the settings it refuses."""

from collections import defaultdict

import pytest
from agent_cases import Counter, Echo, act_by_text, agent_trainer
from trainer_cases import largest_gap, logged, norm, run

from trainer.tree import PROMPT

SETTINGS = {
    "method": "gigpo",
    "num_generations": 4,
    "beta": 0.0,
    "learning_rate": 1e-2,
    "scale_rewards": "none",
}


@pytest.fixture
def agents(tiny_text, tmp_path, monkeypatch):
    """Makes trainers on an environment whose turns are read from the model's text."""
    act_by_text(monkeypatch)

    def make(made=Counter, folder="run", **changes):
        return agent_trainer(tiny_text, tmp_path / folder, made, **SETTINGS | changes)

    return make


def outputs_of(trainer) -> list[dict]:
    found, original = [], trainer._micro_batches
    trainer._micro_batches = lambda output: found.append(output) or original(output)
    return found


@pytest.mark.parametrize("made", [Echo, Counter])
def test_each_step_has_its_own_value_and_steps_that_saw_the_same_sum_to_nothing(agents, made):
    trainer = agents(made, per_device_train_batch_size=16)
    outputs = outputs_of(trainer)
    seen = run(trainer)
    rollout, rewards = trainer.generation.rollout, trainer._all_rows().rewards
    extra, several = defaultdict(list), 0
    for row, leaf in enumerate(rollout.row_leaf):
        index = rollout.row_tree[row]
        tree, values, at = rollout.trees[index], outputs[0]["advantages"][row].tolist(), 0
        own = [r for r, other in enumerate(rollout.row_tree) if other == index]
        episode = rewards[row] - rewards[own].mean()
        for node in tree.path(leaf):
            ids = tree.nodes[node].token_ids
            tokens, at = values[at : at + len(ids)], at + len(ids)
            assert len(set(tokens)) == 1
            if tree.nodes[node].kind == "step":
                above = tree.nodes[node].parent
                what = "prompt" if above == PROMPT else tuple(tree.nodes[above].token_ids)
                extra[index, what].append(tokens[0] - episode)
        several += sum(tree.nodes[node].kind == "step" for node in tree.path(leaf)) > 1
    assert several and len(rollout.trees) == 4
    for compared in extra.values():
        assert sum(compared) == pytest.approx(0, abs=1e-5)
        assert len(compared) > 1 or compared == pytest.approx([0], abs=1e-6)
    assert max(abs(value) for compared in extra.values() for value in compared) > 0.05
    assert norm(seen.gradients[0]) > 0
    assert min(logged(trainer, "agent/turns")) > 0


def test_packed_and_dense_gradients_agree(agents):
    def gradients(sharing):
        return run(agents(folder=sharing, prefix_sharing=sharing, num_iterations=2, max_steps=2)).gradients

    for packed, dense in zip(gradients("on"), gradients("off"), strict=True):
        assert norm(dense) > 0
        assert largest_gap(packed, dense) < 1e-5 * norm(dense)


def test_without_weight_it_is_tree_grpo_on_chains(agents):
    """The same draws, and the leaf against the prompt."""
    left = run(agents(folder="gigpo", step_weight=0.0)).gradients[0]
    chains = {"method": "tree_grpo", "tree_num": 4, "expand_num": 0, "advantage": "inter", "num_generations": None}
    right = run(agents(folder="tree_grpo", **chains)).gradients[0]
    assert largest_gap(left, right) < 1e-5 * norm(right)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_generations": 1}, "num_generations=1: an advantage compares at least 2"),
        ({"step_weight": -1.0}, "step_weight=-1.0 must be a finite number of at least 0"),
        ({"gamma": 0.0}, "gamma=0.0 must be above 0 and at most 1"),
        ({"gamma": float("nan")}, "gamma=nan must be above 0"),
        ({"scale_rewards": "batch"}, "scale_rewards='batch': gigpo compares steps within their prompt"),
        ({"sync_prompt_across_ranks": True}, "one process must hold; set it to false"),
        ({"shared_token_weight": "once"}, "the chains of gigpo do not: leave it out"),
        ({"mask_truncated_completions": True}, "would mask out every agent rollout"),
        ({"max_turns": 0}, "max_turns=0 must be at least 1"),
        ({"environment_args": "[]"}, "must be a JSON object"),
        ({"tree_num": 3}, "tree_num=3 is a setting of tree_grpo, and gigpo does not read it"),
    ],
)
def test_settings_that_cannot_work_end_in_a_sentence(agents, changes, said):
    with pytest.raises(ValueError, match=said):
        agents(**changes)
