"""Small runs of GRPOMATrainer for its tests: text rows, trees written down by hand, and one step with its gradients."""

from __future__ import annotations

import copy
import json

import torch
from datasets import Dataset
from paths import ROOT
from peft import LoraConfig
from transformers import TrainerCallback

from config.grpo_config import GRPOConfig
from dataset.dataset_grpo import rows_from_records
from task.task_loader import load_tasks
from trainer.engines import generating
from trainer.grpo_ma_trainer import GRPOMATrainer
from trainer.tree import PROMPT, Node, Tree

EOS = "<|im_end|>"


def text_rows(count: int):
    """`count` rows of a text task, without a template: the question is the whole user turn."""
    rows = []
    for i in range(count):
        question = f"Move the gripper to the red cone {i}."
        record = {
            "id": f"row-{i}",
            "question_type": "test",
            "question": question,
            "answer": i,
            "images": [],
            "videos": [],
            "messages": [{"role": "user", "content": [{"type": "text", "text": question}]}],
            "extra": {},
        }
        rows.append({"prompt": question, "record": json.dumps(record)})
    return Dataset.from_list(rows)


def settings(folder, **changes) -> GRPOConfig:
    """Arguments of a quiet float32 run of one step with plain SGD."""
    plain = {
        "output_dir": str(folder),
        "method": "grpo_ma",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_steps": 1,
        "logging_steps": 1,
        "shuffle_dataset": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
    }
    if changes.get("method", "grpo_ma") == "grpo_ma":
        plain |= {"think_num": 2, "answer_num": 2, "max_thought_length": 8, "max_answer_length": 8}
    return GRPOConfig(**{**plain, **changes})


def length_reward(completions, **kwargs):
    """A different reward for almost every completion, from its text alone."""
    return [(sum(map(ord, text)) % 97) / 97 for text in completions]


def text_trainer(tiny_text, folder, rows=4, reward=length_reward, perturb=0.0, **changes) -> GRPOMATrainer:
    """A trainer on a copy of the random text model; `perturb` moves the policy away from its reference."""
    module, model, tokenizer = tiny_text
    given = {name: changes.pop(name, None) for name in ("peft_config", "eval_dataset")}
    trainer = GRPOMATrainer(
        model=copy.deepcopy(model),
        module=module,
        processing_class=tokenizer,
        reward_funcs=reward,
        args=settings(folder, **changes),
        train_dataset=text_rows(rows) if isinstance(rows, int) else rows,
        **given,
    )
    move(trainer.model, perturb)
    return trainer


def move(model, size: float) -> None:
    """Adds the same noise to every trainable weight, whoever holds the model."""
    generator = torch.Generator().manual_seed(5)
    for _, weight in sorted(model.named_parameters()):
        if weight.requires_grad and size:
            weight.data += size * torch.randn(weight.shape, generator=generator)


def thought_tree(prompt_id: str, thoughts: list[list[int]], answers: list[list[list[int]]]) -> Tree:
    """A tree of K closed thoughts with the answers below each; a thought without answers never closed."""
    tree = Tree(prompt_id)
    parents = [
        tree.add(Node(PROMPT, "thought", ids, logprobs=[-1.0] * len(ids), status="ok" if below else "unclosed"))
        for ids, below in zip(thoughts, answers, strict=True)
    ]
    for parent, below in zip(parents, answers, strict=True):
        for ids in below:
            tree.add(Node(parent, "answer", ids, logprobs=[-1.0] * len(ids)))
    return tree


def chain_tree(prompt_id: str, completions: list[list[int]]) -> Tree:
    """A tree of independent completions."""
    tree = Tree(prompt_id)
    for ids in completions:
        tree.add(Node(PROMPT, "segment", ids, logprobs=[-1.0] * len(ids)))
    return tree


def script(monkeypatch, make_tree) -> None:
    """From here on trees are `make_tree(prompt_id, policy)` instead of sampled."""

    class ScriptedEngine:
        def __init__(self, model, *args, **kwargs):
            assert not model.training

        def grow(self, prompts, policy, prompt_ids):
            return [make_tree(prompt_id, policy) for prompt_id in prompt_ids]

    monkeypatch.setattr(generating, "TransformersEngine", ScriptedEngine)


class Recorder(TrainerCallback):
    """Losses of the micro-batches and the gradients just before each optimiser step."""

    def __init__(self, trainer):
        self.trainer, self.losses, self.gradients = trainer, [], []
        original = trainer.compute_loss

        def compute_loss(*args, **kwargs):
            loss = original(*args, **kwargs)
            self.losses.append(loss.item())
            return loss

        trainer.compute_loss = compute_loss
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        named = self.trainer.model.named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})


def run(trainer) -> Recorder:
    """Trains and returns what was seen."""
    recorder = Recorder(trainer)
    trainer.train()
    return recorder


def largest_gap(left: dict, right: dict) -> float:
    assert left.keys() == right.keys() and left
    return max((left[name] - right[name]).abs().max().item() for name in left)


def norm(gradients: dict) -> float:
    return torch.stack([g.norm() for g in gradients.values()]).norm().item()


def weights(trainer) -> dict:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def logged(trainer, name: str) -> list[float]:
    """The values of a metric over the log entries that hold it."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def demo_rows(count: int, **changes):
    """The first `count` rows of the demo's training data; `changes` replace fields of every record."""
    data = ROOT / "metadata" / "demo" / "trajectory"
    lines = (data / "train.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return rows_from_records([json.loads(line) | changes for line in lines], load_tasks(), image_root=str(data))


def vlm_trainer(tiny_vlm, folder, rows=2, reward=length_reward, lora=True, vision=False, eval_rows=None, **changes):
    """A trainer on a copy of the shipped Qwen2.5-VL: LoRA of rank 4, or whole weights."""
    module, model, processor = tiny_vlm
    model = copy.deepcopy(model)
    module.freeze(model, freeze_vision=not vision)
    target = module.lora_target_modules(model, vision=vision)
    return GRPOMATrainer(
        model=model,
        module=module,
        processing_class=processor,
        reward_funcs=reward,
        args=settings(folder, **changes),
        train_dataset=demo_rows(rows) if isinstance(rows, int) else rows,
        eval_dataset=eval_rows,
        tasks=load_tasks(),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=target, task_type="CAUSAL_LM") if lora else None,
    )


def trainable(trainer) -> set[str]:
    return {name for name, p in trainer.model.named_parameters() if p.requires_grad}


def random_tree(prompt_id: str, policy):
    """Two thoughts with two answers each, other tokens at every call; every fifth call leaves a thought unclosed."""
    random_tree.calls += 1
    generator = torch.Generator().manual_seed(random_tree.calls)

    def tokens():
        length = int(torch.randint(1, 8, (), generator=generator))
        return torch.randint(300, 600, (length,), generator=generator).tolist()

    open_ended = random_tree.calls % 5 == 0
    return thought_tree(
        prompt_id, [tokens(), tokens()], [[tokens(), tokens()], [] if open_ended else [tokens(), tokens()]]
    )
