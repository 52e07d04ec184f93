"""metric_for_best_model: the task declares which values are better, and only evaluations with a save count."""

import pytest
from trainer_cases import largest_gap, text_rows, text_trainer, vlm_trainer, weights
from transformers import TrainerCallback

from task.task_loader import load_tasks
from trainer.run.best import greater_is_better

DISTANCE = "trajectory-sharerobot/dfd_px"
EVERY_STEP = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}


class Weights(TrainerCallback):
    """The weights after each step."""

    def __init__(self, trainer):
        self.trainer, self.after = trainer, {}
        trainer.add_callback(self)

    def on_step_end(self, args, state, control, **kwargs):
        self.after[state.global_step] = weights(self.trainer)


def scripted(trainer, monkeypatch, values: list[float]) -> Weights:
    """Trains where evaluations give `values` of the metric, one after another."""
    values = iter(values)

    def evaluate(**_):
        trainer.control.should_evaluate = False
        return {f"eval_{trainer.args.metric_for_best_model}": next(values)}

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    seen = Weights(trainer)
    trainer.train()
    return seen


@pytest.mark.parametrize("strategy", ["steps", "best"])
@pytest.mark.parametrize(("metric", "best"), [(DISTANCE, 2), ("trajectory-sharerobot/accuracy", 1)])
def test_the_declared_direction_decides(tiny_vlm, tmp_path, monkeypatch, metric, best, strategy):
    changes = {**EVERY_STEP, "save_strategy": strategy, "max_steps": 3, "load_best_model_at_end": True}
    trainer = vlm_trainer(tiny_vlm, tmp_path, eval_rows=text_rows(1), metric_for_best_model=metric, **changes)
    seen = scripted(trainer, monkeypatch, [18.43, 17.93, 18.1])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert largest_gap(seen.after[best], weights(trainer)) == 0.0


def test_an_evaluation_without_a_save_does_not_count(tiny_text, tmp_path, monkeypatch):
    changes = EVERY_STEP | {"save_steps": 2, "max_steps": 4, "load_best_model_at_end": True}
    trainer = text_trainer(
        tiny_text, tmp_path, eval_dataset=text_rows(1), metric_for_best_model="a/accuracy", **changes
    )
    seen = scripted(trainer, monkeypatch, [0.9, 0.5, 0.8, 0.4])  # steps 1 and 3 are not saved
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert trainer.state.best_metric == 0.5
    assert largest_gap(seen.after[2], weights(trainer)) == 0.0


def test_a_run_without_an_evaluated_save_says_that_it_ends_with_the_last_weights(tiny_text, tmp_path, capsys):
    changes = EVERY_STEP | {"load_best_model_at_end": True, "metric_for_best_model": "a/accuracy", "eval_delay": 5}
    trainer = text_trainer(tiny_text, tmp_path, eval_dataset=text_rows(1), **changes)
    trainer.train()
    trainer.save_final()
    assert "no evaluated step was saved, so the weights are those of the last step" in capsys.readouterr().out


def test_an_undeclared_direction_has_to_be_stated():
    tasks = load_tasks()
    assert greater_is_better(None, None, tasks) is None
    assert greater_is_better(DISTANCE, None, tasks) is False
    assert greater_is_better(f"eval_{DISTANCE}", False, tasks) is False
    assert greater_is_better("search_qa/em_3_hops", None, tasks) is True
    assert greater_is_better("math-reasoning/n_length", None, tasks) is False
    assert greater_is_better("math-reasoning/boxed_share", True, tasks) is True
    assert greater_is_better("unknown/anything", False, {}) is False
    for metric, words in {
        "math-reasoning/boxed_share": "math_reasoning.py does not name it",
        "math-reasoning/n": "math_reasoning.py does not name it",
        "unknown/loss": "there is no task unknown",
    }.items():
        with pytest.raises(ValueError, match=f"metric_for_best_model={metric}: .*{words}.*: set greater_is_better"):
            greater_is_better(metric, None, tasks)
    with pytest.raises(ValueError, match=f"={DISTANCE} is better when lower, but greater_is_better is True: leave"):
        greater_is_better(DISTANCE, True, tasks)


def test_a_trainer_refuses_it_before_anything_is_trained(tiny_text, tmp_path):
    changes = EVERY_STEP | {"load_best_model_at_end": True, "metric_for_best_model": "a/rmse"}
    with pytest.raises(ValueError, match="metric_for_best_model=a/rmse: whether lower or higher values are better"):
        text_trainer(tiny_text, tmp_path, eval_dataset=text_rows(1), **changes)
