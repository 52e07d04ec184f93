"""Padding and end of sequence as checkpoints state them, rightly or not."""

import json
import shutil

import pytest
from trainer_cases import text_rows
from transformers import AutoTokenizer

from config.grpo_config import GRPOConfig
from model.loading import load_policy
from trainer.grpo_ma_trainer import GRPOMATrainer


@pytest.fixture
def folder(tiny_text_dir, tmp_path):
    return shutil.copytree(tiny_text_dir, tmp_path / "model")


@pytest.mark.parametrize("stated", [[2, 999_999], -1, [], None])
def test_an_end_that_the_model_has_no_token_for_ends_nothing(folder, tmp_path, stated):
    """-1 would mark the vocabulary's last token, and an id beyond it end in an index error."""
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": stated}))
    _, model, tokenizer = load_policy(str(folder), dtype="float32")
    args = GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, max_thought_length=4, max_answer_length=4, report_to="none", use_cpu=True
    )
    trainer = GRPOMATrainer(
        model, lambda completions, **_: [0.0] * len(completions), args, text_rows(1), None, tokenizer
    )
    ends = {tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")}
    assert set(trainer.eos_token_ids) == ends | ({2} if stated == [2, 999_999] else set())
    trainer.train()


@pytest.mark.parametrize("name", ["pad_token", "eos_token"])
def test_a_token_that_was_added_to_the_tokenizer_alone_is_named(folder, name):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({name: "[NEW]"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(
        ValueError, match=rf"the tokenizer's {name} \[NEW\] has the id \d+, but the model has \d+ tokens"
    ):
        load_policy(str(folder), dtype="float32")
