"""tree_grpo trains: real engine, real trainer, tools that work and tools that fail."""

from __future__ import annotations

import math
import time

import pytest
from agent_cases import Counter, Echo, task_of
from trainer_cases import logged, run, text_rows, text_trainer, weights

from task.retrieval.passages import RetrievalError
from trainer.policies.agent_forms import Action, TagForm, Turn


@pytest.fixture
def acting(monkeypatch):
    """A random model writes no tags: every third turn is an answer, one in seven is unreadable, the others search."""

    def read(self, text, ended):
        code = sum(map(ord, text))
        if code % 7 == 0:
            return Turn(fault="I try again.")
        return Turn(answered=True) if code % 3 == 0 else Turn(actions=(Action(self.tools[0], str(code % 5)),))

    monkeypatch.setattr(TagForm, "read", read)


def agent_trainer(tiny_text, folder, made, **changes):
    plain = {
        "method": "tree_grpo", "think_num": 4, "answer_num": 4, "max_turn_length": 6, "max_observation_length": 40,
        "max_completion_length": 120, "max_turns": 3, "tool_timeout": 5.0, "beta": 0.0, "learning_rate": 1e-2,
    }  # fmt: skip
    trainer = text_trainer(tiny_text, folder, rows=text_rows(4), **{**plain, **changes})
    trainer.tasks = {"test": task_of(made, made.__name__)}
    return trainer


@pytest.mark.parametrize("made", [Echo, Counter])
def test_steps_change_weights_and_say_what_the_agents_did(tiny_text, tmp_path, acting, made):
    trainer = agent_trainer(tiny_text, tmp_path, made, max_steps=2, shared_token_weight="per_leaf")
    before = weights(trainer)
    recorder = run(trainer)
    assert all(math.isfinite(loss) for loss in recorder.losses)
    assert all((weights(trainer)[name] != before[name]).any() for name in before)
    for name in ("tool/calls", "agent/turns"):
        assert len(logged(trainer, name)) == 2 and min(logged(trainer, name)) > 0
    assert max(logged(trainer, "agent/invalid_share")) > 0
    assert set(logged(trainer, "tool/errors/timeout")) == {0.0}
    assert min(logged(trainer, "intra/zero_spread")) < 1


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

    trainer = agent_trainer(tiny_text, tmp_path, Dying, max_steps=6)
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

    trainer = agent_trainer(tiny_text, tmp_path, Slow, max_steps=1, tool_timeout=0.5)
    started = time.monotonic()
    run(trainer)
    assert time.monotonic() - started < 20 and logged(trainer, "tool/errors/timeout")[0] > 0


def test_the_same_seed_trains_the_same(tiny_text, tmp_path, acting):
    losses = [run(agent_trainer(tiny_text, tmp_path / str(i), Counter, max_steps=2)).losses for i in range(2)]
    assert losses[0] == losses[1]
