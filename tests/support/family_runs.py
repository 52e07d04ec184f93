"""Rows of pictures of different sizes, and a short LoRA run of a family's small model, from its folder on disk."""

import copy
import importlib.util
import json

import pytest
from datasets import Dataset
from family_cases import FAMILIES, built
from peft import LoraConfig
from picture_cases import noise
from trainer_cases import length_reward, settings

from model.loading import load_policy
from trainer.grpo_ma_trainer import GRPOMATrainer

LACKING = {name for name, case in FAMILIES.items() if case.extra and not importlib.util.find_spec(case.extra)}
NAMES = [pytest.param(name, marks=pytest.mark.skipif(name in LACKING, reason="lacks a package")) for name in FAMILIES]
SIZES = [(), ((90, 60),), ((60, 90), (130, 40))]
# A text that random weights write often, so that thoughts close.
THOUGHT_END = "o"


def question(module, number: int, sizes):
    """A prompt with one picture of noise for each size."""
    images = [noise(number + place, *size) for place, size in enumerate(sizes)]
    parts = [{"type": "image", "index": place} for place in range(len(images))]
    parts.append({"type": "text", "text": f"What is in {number} pictures?"})
    return module.encode([{"role": "user", "content": parts}], images)


def prompts_of(module):
    """A text, one picture, and two pictures of different size."""
    return [question(module, number, sizes) for number, sizes in enumerate(SIZES)]


def picture_rows(folder, count: int = 4) -> Dataset:
    """Rows as a dataset gives them, in turn of a text, one picture and two pictures."""
    rows = []
    for number in range(count):
        sizes = SIZES[number % len(SIZES)]
        paths = [str(folder / f"{number}_{place}.png") for place in range(len(sizes))]
        for place, path in enumerate(paths):
            noise(number + place, *sizes[place]).save(path)
        text = f"What is in picture {number}?"
        parts = [*({"type": "image", "index": place} for place in range(len(paths))), {"type": "text", "text": text}]
        record = {"id": f"row-{number}", "question_type": "test", "question": text, "answer": number, "images": paths}
        record |= {"videos": [], "messages": [{"role": "user", "content": parts}], "extra": {}}
        rows.append({"prompt": text, "record": json.dumps(record)})
    return Dataset.from_list(rows)


def saved(name: str, folder):
    """The folder of a family's model and processor, as they are published."""
    _, model, processor = built(name)
    copy.deepcopy(model).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def lora_trainer(folder, out, **changes) -> GRPOMATrainer:
    """A run of GRPO-MA on picture rows, with LoRA of rank 2 where the module puts it."""
    module, model, processor = load_policy(str(folder), dtype="float32")
    module.freeze(model, freeze_vision=True)
    target = module.lora_target_modules(model)
    given = {"thought_end": THOUGHT_END, "max_steps": 2, "gradient_accumulation_steps": 1, "learning_rate": 0.1}
    return GRPOMATrainer(
        model=model,
        module=module,
        processing_class=processor,
        reward_funcs=length_reward,
        args=settings(out, **{**given, **changes}),
        train_dataset=picture_rows(out),
        peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=target, task_type="CAUSAL_LM"),
    )
