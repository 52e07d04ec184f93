"""What the trainer refuses before TRL sees it."""

import datasets
import pytest
from reward_cases import make_task
from trainer_cases import run, text_trainer

from task.errors import UserError
from trainer.arguments import check_arguments, check_thought_end

ROWS = datasets.Dataset.from_dict({"prompt": ["q"], "record": ["{}"]})


@pytest.mark.parametrize("name", ["tools", "environment_factory", "rollout_func"])
def test_what_would_run_trls_own_loop_is_refused(name):
    with pytest.raises(ValueError, match=f"^{name} cannot be passed to GRPOMATrainer: .*leave it out$"):
        check_arguments(ROWS, {name: object()})
    check_arguments(ROWS, {name: None, "callbacks": []})


def test_rows_without_a_record_are_refused():
    with pytest.raises(ValueError, match="lacks the column record: build it with"):
        check_arguments(ROWS.remove_columns("record"), {})


def test_an_evaluation_without_its_data_is_refused(tiny_text, tmp_path):
    trainer = text_trainer(tiny_text, tmp_path, eval_on_start=True)
    with pytest.raises(ValueError, match="there is no eval_dataset: give one"):
        trainer.train()


def test_evaluations_during_training_need_records(tiny_text, tmp_path):
    with pytest.raises(UserError, match="eval_strategy=steps has nothing to evaluate: give --eval_dataset_name"):
        text_trainer(tiny_text, tmp_path, eval_strategy="steps", eval_steps=1)


def test_tasks_of_other_thought_tags_are_refused():
    tasks = {"words": make_task(), "plans": make_task("plans", thought_end="</plan>")}
    with pytest.raises(UserError, match=r"loaded for thought_end </plan>, .* load_tasks\(thought_end='</think>'\)"):
        check_thought_end(tasks, "</think>")
    check_thought_end({"plans": tasks["plans"]}, "</plan>")


def test_a_thought_does_not_end_with_the_end_of_the_completion(tiny_text, tmp_path):
    sentence = r"^thought_end='<\|im_end\|>' holds <\|im_end\|>, with which the model ends a completion"
    with pytest.raises(UserError, match=sentence):
        text_trainer(tiny_text, tmp_path, thought_end="<|im_end|>")


def test_thoughts_end_at_any_text(tiny_text, tmp_path):
    trainer = text_trainer(
        tiny_text, tmp_path, thought_end="o", max_thought_length=64, think_num=4, max_answer_length=2
    )
    run(trainer)
    nodes = [node for tree in trainer.generation.rollout.trees for node in tree.nodes if node.kind == "thought"]
    closed = [tiny_text[2].decode(node.token_ids) for node in nodes if node.status == "ok"]
    assert closed and all(text.rstrip()[:-1].count("o") == 0 or "o" in text[-4:] for text in closed)
