"""A step on a model whose chat template opens the thought: the demo model goes on inside it, and is rewarded for it."""

import copy
import json

import pytest
from peft import LoraConfig
from trainer_cases import demo_rows, settings

from model.registry import module_for
from task.rewards.router import TaskReward
from task.task_loader import load_tasks
from trainer.grpo_ma_trainer import GRPOMATrainer


@pytest.mark.slow
def test_a_rollout_goes_on_inside_the_opened_thought_and_keeps_its_format(tiny_vlm, tiny_model_dir, tmp_path):
    model, module = copy.deepcopy(tiny_vlm[1]), module_for(tiny_model_dir)
    processor = module.load_processor(str(tiny_model_dir))
    processor.chat_template += "{% if add_generation_prompt and opened %}{{ '<think>' }}{% endif %}"
    tasks, read = load_tasks(), []

    class Format(TaskReward):
        def __call__(self, prompts=None, completions=(), **columns):
            values = super().__call__(prompts, completions, **columns)
            read.extend(zip(completions, values, strict=True))
            return values

    lengths = {"max_thought_length": 96, "max_answer_length": 64}
    args = settings(tmp_path, log_trees="every:1", chat_template_kwargs={"opened": True}, **lengths)
    rewards = [Format("format", tasks), TaskReward("accuracy", tasks)]
    lora = LoraConfig(r=4, target_modules=module.lora_target_modules(model))
    trainer = GRPOMATrainer(model, rewards, args, demo_rows(2), None, processor, module, tasks=tasks, peft_config=lora)
    trainer.train()
    assert len(read) == 4 and all(text.count("<think>") == 1 and text.startswith("<think>") for text, _ in read)
    assert sum(value for _, value in read) >= 3, "the demo model knows the format"
    (tree,) = map(json.loads, (tmp_path / "trees.jsonl").read_text().splitlines()[:1])
    assert tree["opened"] == "<think>" and "<think>" not in tree["nodes"][0]["text"]
