"""turn_value trains agents: values of turns, a ratio per turn, both layouts, and the settings it refuses."""

import pytest
import torch
from agent_cases import Counter, Echo, act_by_text, agent_trainer
from trainer_cases import largest_gap, logged, norm, run

from trainer.advantages.leaf_group import leaf_group
from trainer.advantages.turn_value import turn_value
from trainer.objective import sequence_ratio_inputs

SETTINGS = {
    "method": "turn_value",
    "turn_chains": 2,
    "turn_branches": 2,
    "turn_rounds": 1,
    "learning_rate": 1e-2,
}


@pytest.fixture
def agents(tiny_text, tmp_path, monkeypatch):
    """Makes trainers on an environment whose turns are read from the model's text."""
    act_by_text(monkeypatch)

    def make(made=Counter, folder="run", **changes):
        return agent_trainer(tiny_text, tmp_path / folder, made, **SETTINGS | changes)

    return make


def test_each_turn_has_its_value(agents):
    trainer = agents(Echo, per_device_train_batch_size=16)
    outputs, original = [], trainer._micro_batches
    trainer._micro_batches = lambda output: outputs.append(output) or original(output)
    seen = run(trainer)
    rollout, rewards = trainer.generation.rollout, trainer._all_rows().rewards
    advantages = leaf_group(rewards, rollout.row_tree)
    for index, tree in enumerate(rollout.trees):
        rows = [row for row, other in enumerate(rollout.row_tree) if other == index]
        assert len(rows) == len(tree.leaves()) == 4
        wanted = turn_value(tree, {rollout.row_leaf[row]: advantages[row] for row in rows})
        for row in rows:
            expected, leaf = tree.spread(wanted, rollout.row_leaf[row]), rollout.row_leaf[row]
            assert outputs[0]["advantages"][row][: len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
            nodes = tree.spread(list(range(len(tree.nodes))), leaf)
            ids = outputs[0]["sequence_ids"][row].tolist()
            pairs = set(zip(nodes, ids, strict=False))
            assert len(pairs) == len(tree.path(leaf)) == len({place for _, place in pairs})
    assert norm(seen.gradients[0]) > 0 and max(logged(trainer, "agent/turns")) > 0


def test_packed_and_dense_gradients_agree(agents):
    """In the second update ratios differ from 1, and some are clipped."""

    def gradients(sharing):
        again = {"num_iterations": 2, "max_steps": 2, "learning_rate": 1e-3, "epsilon": 0.008, "epsilon_high": 0.008}
        trainer = agents(folder=sharing, prefix_sharing=sharing, **again)
        gradients = run(trainer).gradients
        assert 0 < logged(trainer, "clip_ratio/region_mean")[1] < 1
        return gradients

    for packed, dense in zip(gradients("on"), gradients("off"), strict=True):
        assert norm(dense) > 0
        assert largest_gap(packed, dense) < 1e-5 * norm(dense)


def test_the_ratio_of_a_turn_by_hand():
    """Two turns with an observation between them, and padding: the means of 0.1, 0.3 and of -0.2, 0.6, 0.2."""
    new = torch.tensor([[0.1, 0.3, 7.0, 7.0, -0.2, 0.6, 0.2, 5.0]], dtype=torch.float64, requires_grad=True)
    old = torch.zeros_like(new).detach()
    ids = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 0]])
    inputs = {
        "old_per_token_logps": old,
        "completion_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1]]),
        "sequence_ids": ids,
    }
    replaced = sequence_ratio_inputs(inputs, new.detach())["old_per_token_logps"]
    ratios = (new - replaced).exp()
    first, second = torch.tensor([0.2, 0.2], dtype=torch.float64).exp()
    assert ratios[0, :2].tolist() == pytest.approx([first.item()] * 2)
    assert ratios[0, 4:7].tolist() == pytest.approx([second.item()] * 3)
    ratios[0, 5].backward()
    assert new.grad[0].tolist() == pytest.approx([0, 0, 0, 0, 0, second.item(), 0, 0])
    whole = sequence_ratio_inputs({k: v for k, v in inputs.items() if k != "sequence_ids"}, new.detach())
    row = (new - whole["old_per_token_logps"])[0, [0, 1, 4, 5, 6]]
    assert row.tolist() == pytest.approx([(0.1 + 0.3 - 0.2 + 0.6 + 0.2) / 5] * 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"turn_chains": 1, "turn_rounds": 0}, "give one leaf per prompt, which has no advantage"),
        ({"turn_chains": 0}, "turn_chains=0 must be at least 1"),
        ({"sibling_penalty": -0.1}, "sibling_penalty=-0.1 must be a finite number of at least 0"),
        ({"sibling_penalty": float("nan")}, "sibling_penalty=nan must be a finite number"),
        ({"turn_baseline": "leaf"}, "turn_baseline"),
        ({"gamma": 0.0}, "gamma=0.0 must be above 0 and at most 1"),
        ({"sync_prompt_across_ranks": True}, "turn_value needs the whole tree of a prompt on one process"),
        ({"num_generations": 8}, "num_generations=8, but turn_value derives 4 from turn_chains=2"),
        ({"mask_truncated_completions": True}, "would mask out every agent rollout"),
        ({"tree_num": 3}, "tree_num=3 is a setting of tree_grpo, and turn_value does not read it"),
    ],
)
def test_settings_that_cannot_work_end_in_a_sentence(agents, changes, said):
    with pytest.raises(ValueError, match=said):
        agents(**changes)


def test_the_preset_is_the_papers(agents):
    args = agents().args
    assert (args.importance_sampling_level, args.epsilon, args.epsilon_high) == ("sequence", 3e-3, 4e-3)
    assert agents(folder="own", importance_sampling_level="token", epsilon=0.2, epsilon_high=0.3).args.epsilon == 0.2
