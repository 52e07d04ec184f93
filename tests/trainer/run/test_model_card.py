"""The card beside saved weights: what it says is the run's, and a push to the hub carries it."""

from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from trainer_cases import vlm_trainer

from trainer.run.model_card import scores

EVALUATED = {"eval_trajectory/accuracy": 0.25, "eval_runtime": 3.0, "step": 1}


@pytest.fixture
def trained(tiny_vlm, tmp_path):
    trainer = vlm_trainer(tiny_vlm, tmp_path / "run", max_steps=1, save_strategy="steps", save_steps=1, beta=0.04)
    trainer.train()
    return trainer


def test_the_card_states_method_data_settings_and_scores(trained, tmp_path):
    trained.state.log_history.append(EVALUATED)
    trained.save_final("metadata/demo.yaml")
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert card.data.library_name == "peft"
    assert card.data.pipeline_tag == "image-text-to-text"
    assert {"grpo-ma", "grpo_ma", "trl"} <= set(card.data.tags)
    assert "on `metadata/demo.yaml`: 1 optimiser steps on 1 process(es)" in card.text
    assert "| eval_trajectory/accuracy | 0.25 |" in card.text
    assert "| beta | 0.04 |" in card.text
    assert f"| think_num | {trained.args.think_num} |" in card.text
    assert "fork_rule" not in card.text, "a setting of another method"
    assert "eval_runtime" not in card.text
    assert "More Information Needed" not in card.text


def test_a_checkpoint_has_the_card_of_its_step(trained, tmp_path):
    text = (tmp_path / "run" / "checkpoint-1" / "README.md").read_text()
    assert "1 optimiser steps" in text
    assert "More Information Needed" not in text


def test_a_push_to_the_hub_writes_the_card_first(trained, tmp_path, monkeypatch):
    pushed = []

    def upload(repo_id, folder_path, **given):
        pushed.append((repo_id, ModelCard.load(f"{folder_path}/README.md").text))

    monkeypatch.setattr("transformers.trainer.hf_api", lambda: SimpleNamespace(upload_folder=upload))
    trained.hub_model_id = "someone/model"
    trained.push_to_hub(dataset_name="my data")
    assert pushed[0][0] == "someone/model"
    assert "# run\n" in pushed[0][1]
    assert "on `my data`" in pushed[0][1]


def test_scores_are_those_of_the_last_evaluation():
    history = [{"eval_a": 1.0}, {"reward": 0.5}, {"eval_a": 2.0, "eval_runtime": 9}, {"reward": 0.75}, {"loss": 1}]
    assert scores(history) == {"eval_a": 2.0, "reward of the last logged training step": 0.75}
    assert scores([]) == {}
