"""max_prompt_length with pictures: a prompt over the limit is refused or skipped, never cut."""

import json

import pytest
from picture_cases import noise

from model.registry import module_for
from trainer.prompts import PromptEncoder, PromptError


def row(folder, **changes) -> dict:
    """A dataset row with one picture of 640x480."""
    noise(0, 640, 480).save(folder / "a.png")
    content = [{"type": "image", "index": 0}, {"type": "text", "text": "Where?"}]
    record = {
        "id": "r7",
        "question_type": "t",
        "question": "Where?",
        "answer": None,
        "images": [str(folder / "a.png")],
        "videos": [],
        "messages": [{"role": "user", "content": content}],
        "extra": {},
    }
    return {"prompt": "Where?", "record": json.dumps(record | changes)}


@pytest.fixture(scope="module")
def module(tiny_model_dir):
    module = module_for(tiny_model_dir)
    module.load_processor(str(tiny_model_dir))
    return module


class TestLength:
    def test_a_picture_over_the_limit_is_refused_whole_and_by_name(self, module, tmp_path):
        with pytest.raises(PromptError, match=r"record r7: the prompt has 4\d\d tokens, over max_prompt_length=256"):
            PromptEncoder(module, 256, "error", "error").encode(row(tmp_path))

    def test_or_skipped_and_counted_once(self, module, tmp_path, capsys):
        encoder = PromptEncoder(module, 256, "skip", "error")
        assert encoder.encode(row(tmp_path)) is None
        assert encoder.encode(row(tmp_path)) is None
        assert list(encoder.skipped) == ["r7"]
        assert capsys.readouterr().out.count("skipped: record r7") == 1

    def test_at_the_limit_every_placeholder_is_there(self, module, tmp_path):
        length = len(PromptEncoder(module, 4096, "error", "error").encode(row(tmp_path)).ids)
        prompt = PromptEncoder(module, length, "error", "error").encode(row(tmp_path))
        assert prompt.ids.count(module.config.image_token_id) == 391
        with pytest.raises(PromptError):
            PromptEncoder(module, length - 1, "error", "error").encode(row(tmp_path))
