"""Each family's prompts: the scale of its coordinates, its chat template's switches, and text after a long video."""

import functools
import importlib.util

import pytest
import torch
from family_cases import FAMILIES
from PIL import Image

from model.coordinates import COORDINATE_FRAMES
from model.registry import module_for

LACKING = {name for name, case in FAMILIES.items() if case.extra and not importlib.util.find_spec(case.extra)}
NAMES = [pytest.param(name, marks=pytest.mark.skipif(name in LACKING, reason="lacks a package")) for name in FAMILIES]
family = pytest.mark.parametrize("name", NAMES)
UNDOCUMENTED = {"idefics3", "smolvlm", "llava_onevision", "mistral3", "gemma3", "lfm2_vl", "aya_vision", "llava_next"}


class Clip(list):
    """16 frames that cover 100 s."""

    fps = 0.16

    def __init__(self):
        super().__init__(Image.new("RGB", (64, 64), (9 * i, 0, 0)) for i in range(16))


@functools.cache
def parts_of(name: str):
    return FAMILIES[name].build()


def module_of(name: str):
    """A module with its processor; no weights are made. The template is copied back by `monkeypatch`."""
    config, processor = parts_of(name)
    module = module_for(config)
    module.processor = processor
    return module


@family
def test_coordinates_are_on_the_scale_that_the_family_documents(name):
    expected = None if name in UNDOCUMENTED else "processed" if name == "qwen2_5_vl" else "norm1000"
    assert module_of(name).coordinate_frame == COORDINATE_FRAMES.get(name) == expected


@family
def test_a_template_may_open_the_thought_by_a_switch(name, monkeypatch):
    module = module_of(name)
    opening = "{%- if add_generation_prompt and thinking -%}{{ '<think>\\n' }}{%- endif -%}"
    monkeypatch.setattr(module.processor, "chat_template", module.processor.chat_template + opening)
    question = [{"role": "user", "content": "Where?"}]
    plain = module.encode(question).ids
    assert module.opened_thought == ""
    module.template_kwargs = {"thinking": True}
    opened = module.encode(question).ids
    assert module.opened_thought == "<think>\n"
    assert opened[: len(plain) - 1] == plain[:-1] and module.tokenizer.decode(opened).endswith("<think>\n")
    sampled = module.tokenizer("why</think>", add_special_tokens=False)["input_ids"]
    assert module.completion_texts([sampled], []) == ["<think>\nwhy</think>"]


@family
def test_a_system_turn_is_in_the_prompt(name):
    module = module_of(name)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    text = module.tokenizer.decode(module.encode(turns).ids)
    assert 0 <= text.index("Be brief.") < text.index("Where?")


@pytest.mark.parametrize("name", [n for n in FAMILIES if FAMILIES[n].video and n not in LACKING])
def test_text_starts_one_past_everything_before_it(name):
    """Where the library disagrees with the authors (Qwen2-VL, Qwen2.5-VL), the authors' rule is taken."""
    module = module_of(name)
    parts = [{"type": "video", "index": 0}, {"type": "text", "text": "What moves?"}]
    prompt = module.encode([{"role": "user", "content": parts}], videos=[Clip()])
    kinds, positions = torch.tensor(module._kinds(prompt.ids)), prompt.position_ids.reshape(-1, len(prompt.ids))
    after = int((kinds != 0).nonzero().max()) + 1
    start = int(positions[:, :after].max()) + 1
    tail = len(prompt.ids) - after
    assert torch.equal(positions[:, after:], torch.arange(start, start + tail).expand(len(positions), -1))
    assert prompt.next_position == start + tail
