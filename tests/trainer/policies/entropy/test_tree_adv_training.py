"""tree_adv end to end on the small models: the engine forks, segments get values, both layouts agree."""

import math

import pytest
from engine_cases import engine, grow
from trainer_cases import demo_rows, largest_gap, logged, norm, run, settings, text_trainer, vlm_trainer

from config.foreign import OWNERS
from trainer.methods import METHODS, Batch
from trainer.prompts import PromptEncoder

SETTINGS = {
    "method": "tree_adv",
    "num_generations": 6,
    "num_trees": 2,
    "min_gap": 2,
    "max_completion_length": 12,
    "fork_entropy": 1.0,
    "shared_token_weight": "once",
}
METRICS = ("fork/count", "fork/filled", "fork/depth", "fork/entropy", "fork/saved", "fork/distinct", "fork/threshold")


def test_a_run_forks_logs_and_moves_its_threshold(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path, **SETTINGS | {"fork_entropy": None, "max_steps": 3})
    run(trainer)
    assert all(len(logged(trainer, name)) == 3 for name in METRICS)
    thresholds, measured = logged(trainer, "fork/threshold"), logged(trainer, "fork/measured")
    assert thresholds[0] == pytest.approx(math.log(2))
    assert thresholds[1] == pytest.approx(measured[0])
    assert thresholds[2] == pytest.approx((measured[0] + measured[1]) / 2)
    assert trainer.memory["fork_generation"] == 3
    assert logged(trainer, "fork/count")[0] > 0
    assert 0 < logged(trainer, "fork/saved")[0] < 1
    trees = trainer.generation.rollout.trees
    assert {len(tree.leaves()) for tree in trees} == {6}


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_packed_and_dense_gradients_agree(tiny_text, tmp_path, level):
    def gradients(sharing):
        changes = {"prefix_sharing": sharing, "importance_sampling_level": level, "num_iterations": 2, "max_steps": 2}
        seen = run(text_trainer(tiny_text, tmp_path / sharing, rows=2, **SETTINGS | changes))
        return seen.gradients

    for packed, dense in zip(gradients("on"), gradients("off"), strict=True):
        assert norm(dense) > 0
        assert largest_gap(packed, dense) < 1e-5 * norm(dense)


@pytest.mark.parametrize("changes", [{"fork_entropy": 99.0}, {"num_trees": 6}, {"max_completion_length": 1}])
def test_without_any_fork_it_is_grpo(tiny_text, tmp_path, changes):
    """A threshold no token reaches, as many trees as leaves, chains of one token: plain chains, and GRPO's gradient."""
    changes = SETTINGS | {"temperature": 5.0} | changes
    trainer = text_trainer(tiny_text, tmp_path / "adv", rows=1, **changes)
    seen = run(trainer)
    (tree,) = trainer.generation.rollout.trees
    assert len(tree.nodes) == len(tree.leaves()) == 6
    assert logged(trainer, "fork/count") == [0]
    assert logged(trainer, "fork/filled") == [6 - changes["num_trees"]]
    if changes["num_trees"] == 6:  # the same draws
        own = {"method": "grpo", "shared_token_weight": "per_leaf"}
        chains = {name: value for name, value in (changes | own).items() if OWNERS.get(name) is None}
        chains = run(text_trainer(tiny_text, tmp_path / "grpo", rows=1, **chains))
        assert largest_gap(seen.gradients[0], chains.gradients[0]) < 1e-6 * max(norm(seen.gradients[0]), 1e-3)


def test_with_pictures_and_lora(tiny_vlm, tmp_path):
    changes = SETTINGS | {"fork_in_answer": True, "fork_entropy": 0.5, "min_gap": 4}
    trainer = vlm_trainer(tiny_vlm, tmp_path, **changes | {"max_completion_length": 40})
    seen = run(trainer)
    assert logged(trainer, "fork/count")[0] > 0
    assert norm(seen.gradients[0]) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_trees": 7}, "num_trees=7 seed chains do not fit into num_generations=6"),
        ({"branch_factor": 1}, "branch_factor=1 never forks"),
        ({"min_gap": 0}, "min_gap=0 must be at least 1"),
        ({"num_generations": 1, "num_trees": 1}, "num_generations=1: an advantage compares at least 2"),
        ({"fork_share": 0.0}, "fork_share=0.0 must be above 0"),
        ({"fork_entropy": float("nan")}, "fork_entropy=nan must be a finite number"),
        ({"fork_rule": "fixed"}, "which fork_rule=fixed does not use"),
        ({"fork_rule": "highest"}, "fork_rule='highest' is unknown: choose one of entropy, random, fixed, surprisal"),
        ({"aggregation": "max"}, "aggregation='max' is unknown: choose one of mean, sum, sqrt"),
    ],
)
def test_settings_that_cannot_work_end_in_a_sentence(tiny_text, tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        text_trainer(tiny_text, tmp_path, **SETTINGS | changes)


def test_the_default_setting_saves_a_quarter_of_the_demos_tokens(tiny_vlm, tmp_path):
    module, _, processor = tiny_vlm
    args = settings(tmp_path, method="tree_adv", max_completion_length=160)
    encoder = PromptEncoder(module, 4096, "error", "error", None, 160)
    prompts = [encoder.encode(row) for row in demo_rows(8)]
    policy = METHODS["tree_adv"].policy(Batch(args, tokenizer=processor.tokenizer, module=module))
    grower = engine(tiny_vlm)
    trees = grow(grower, prompts, policy)
    assert {len(tree.leaves()) for tree in trees} == {16}
    flat = sum(len(tree.tokens(leaf)) for tree in trees for leaf in tree.leaves())
    assert grower.stats["generated_tokens"] == sum(tree.unique_tokens() for tree in trees) < 0.75 * flat
    assert grower.stats["recomputed_tokens"] == 0
