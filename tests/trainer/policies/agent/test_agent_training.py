"""tree_grpo trains: real engine, real trainer, tools that work and tools that fail."""

from __future__ import annotations

import math
import time

import pytest
from agent_cases import Counter, Echo, ForkingCounter, act_by_text, agent_trainer
from trainer_cases import logged, run, vlm_trainer, weights

from dataset.dataset_grpo import rows_from_records
from task.gridworld import draw
from task.retrieval.passages import RetrievalError
from task.task_loader import load_tasks


@pytest.fixture
def acting(monkeypatch):
    act_by_text(monkeypatch)


def trainer_of(tiny_text, folder, made, **changes):
    plain = {"method": "tree_grpo", "beta": 0.0, "learning_rate": 1e-2}
    return agent_trainer(tiny_text, folder, made, **plain | changes)


@pytest.mark.parametrize("made", [Echo, Counter])
def test_steps_change_weights_and_say_what_the_agents_did(tiny_text, tmp_path, acting, made):
    trainer = trainer_of(tiny_text, tmp_path, made, max_steps=2, shared_token_weight="per_leaf")
    before = weights(trainer)
    recorder = run(trainer)
    assert all(math.isfinite(loss) for loss in recorder.losses)
    assert all((weights(trainer)[name] != before[name]).any() for name in before)
    for name in ("tool/calls", "agent/turns"):
        assert len(logged(trainer, name)) == 2 and min(logged(trainer, name)) > 0
    assert max(logged(trainer, "agent/invalid_share")) > 0
    assert set(logged(trainer, "tool/errors/timeout")) == {0.0}
    assert min(logged(trainer, "intra/zero_spread")) < 1
    assert logged(trainer, "completions/clipped_ratio") == logged(trainer, "rollout/cut_share")
    assert not logged(trainer, "completions/mean_terminated_length")


def test_a_retriever_that_dies_in_mid_run_is_counted_and_training_goes_on(tiny_text, tmp_path, acting):
    class Dying(Echo):
        calls = 0

        def search(self, query: str) -> str:
            """Looks.

            Args:
                query: for what.

            Returns:
                Text.
            """
            type(self).calls += 1
            if self.calls > 8:
                raise RetrievalError("refused", "the server is gone")
            return f"found {query}"

    trainer = trainer_of(tiny_text, tmp_path, Dying, max_steps=6)
    recorder = run(trainer)
    assert trainer.state.global_step == 6 and all(math.isfinite(loss) for loss in recorder.losses)
    refused = logged(trainer, "tool/errors/refused")
    assert len(refused) == 6 and refused[0] == 0 and refused[-1] > 0


def test_answers_that_come_too_late_cost_their_timeout_and_no_more(tiny_text, tmp_path, acting):
    class Slow(Echo):
        def search(self, query: str) -> str:
            """Looks.

            Args:
                query: for what.

            Returns:
                Text, later.
            """
            time.sleep(5)
            return "late"

    trainer = trainer_of(tiny_text, tmp_path, Slow, max_steps=1, tool_timeout=0.5)
    started = time.monotonic()
    run(trainer)
    assert time.monotonic() - started < 20 and logged(trainer, "tool/errors/timeout")[0] > 0


def test_the_same_seed_trains_the_same(tiny_text, tmp_path, acting):
    losses = [run(trainer_of(tiny_text, tmp_path / str(i), Counter, max_steps=2)).losses for i in range(2)]
    assert losses[0] == losses[1]


COMBINATIONS = {
    "once, a second pass, two micro-batches": {
        "shared_token_weight": "once", "num_iterations": 2, "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 2, "max_steps": 3, "beta": 0.02,
    },
    "cut forwards, rounds": {"max_slots": 300, "expand_num": 1, "expand_rounds": 3, "perturb": 0.01, "beta": 0.1},
    "the code's choice, sequence ratios": {
        "fork_choice": "code", "importance_sampling_level": "sequence", "num_iterations": 2,
    },
}  # fmt: skip


def ends(trainer_of, changes: dict) -> list[dict]:
    """The weights after training packed and one row per leaf."""
    found = []
    for sharing in ("on", "off"):
        trainer = trainer_of(prefix_sharing=sharing, **{"max_steps": 2, **changes})
        before = weights(trainer)
        run(trainer)
        found.append(weights(trainer))
        assert any((found[-1][name] != before[name]).any() for name in before)
        changes = {name: value for name, value in changes.items() if name != "max_slots"}
    return found


@pytest.mark.parametrize("name", COMBINATIONS)
def test_packed_agents_learn_what_rows_apart_learn(tiny_text, tmp_path, acting, name):
    packed, apart = ends(
        lambda **given: trainer_of(tiny_text, tmp_path / given["prefix_sharing"], ForkingCounter, **given),
        COMBINATIONS[name],
    )
    assert max((packed[key] - apart[key]).abs().max().item() for key in packed) < 1e-5


@pytest.mark.parametrize(
    "changes", [{"lora": False, "vision": True, "max_slots": 700}, pytest.param({"lora": True}, marks=pytest.mark.slow)]
)
def test_agents_learn_from_pictures_their_tools_return(tiny_vlm, tmp_path, acting, changes):
    pytest.importorskip("gymnasium")
    board, tasks = ["SFF", "FFF", "FFG"], load_tasks()
    draw(board, (0, 0)).save(tmp_path / "board.png")
    record = {"question_type": "gridworld", "question": "Go.", "answer": board, "image": "board.png"}
    rows = rows_from_records([record | {"id": str(i)} for i in range(2)], tasks, image_root=str(tmp_path))
    given = {"rows": rows, "method": "tree_grpo", "max_turn_length": 6, "max_observation_length": 60}
    given |= {"max_completion_length": 300, "shared_token_weight": "once"}
    trainers = []

    def made(**more):
        trainers.append(vlm_trainer(tiny_vlm, tmp_path / more["prefix_sharing"], **given, **more))
        return trainers[-1]

    packed, apart = ends(made, changes)
    assert max((packed[key] - apart[key]).abs().max().item() for key in packed) < 1e-5
    trees = [tree for trainer in trainers for tree in trainer.generation.rollout.trees]
    assert any(node.media is not None for tree in trees for node in tree.nodes)
    assert max(logged(trainers[0], "sampling/policy_gap")) < 1e-4
