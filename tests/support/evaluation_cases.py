"""Evaluation without a model: a task of a line, prompts of one token per letter, and an engine that answers as told."""

from pathlib import Path

import torch

from model.vlm_module import EncodedPrompt
from task.task_loader import Task
from trainer.tree import PROMPT, Node, Tree


def make_task(name="sum", frame="none", process_answer=None, compute_metrics=None, **functions) -> Task:
    def accuracy_reward(completion, sol, **kw):
        return (float(completion == str(sol)), {"logged": 1.0})

    given = {
        "format_reward": lambda completion, sol, **kw: float("x" not in completion),
        "accuracy_reward": accuracy_reward,
        "parse_answer": lambda completion, **kw: None if "x" in completion else completion,
    } | functions
    config = {"task_type": name, "grpo_template": "{Question}", "frame": frame}
    given |= {"process_answer": process_answer, "compute_metrics": compute_metrics}
    return Task(name=name, path=Path(f"{name}.py"), config=config, **given)


class LetterModule:
    """Prompts of a letter a token."""

    def encode(self, messages, images=(), videos=()):
        ids = [ord(c) for c in messages[-1]["content"][-1]["text"]]
        sizes = [image.size for image in images]
        half = [(w // 2, h // 2) for w, h in sizes]
        return EncodedPrompt(ids, torch.arange(len(ids)), len(ids), image_sizes=sizes, processed_sizes=half)

    def completion_texts(self, rows, eos_ids):
        return ["".join(map(chr, row)) for row in rows]


class ScriptedEngine:
    """Answers a prompt id with the given text; remembers the prompt lengths of each batch."""

    eos_ids = ()

    def __init__(self, completions, limit=9):
        self.completions, self.limit, self.batches = completions, limit, []

    def grow(self, prompts, policy, prompt_ids):
        self.batches.append([len(p.ids) for p in prompts])
        assert policy.leaves == 1
        trees = []
        for name in prompt_ids:
            text = self.completions.get(name, "?")
            tree = Tree(name)
            cut = len(text) > self.limit
            tokens = [ord(c) for c in text[: self.limit]]
            tree.add(Node(PROMPT, "segment", tokens, status="length" if cut else "ok"))
            trees.append(tree)
        return trees


def records(n):
    return [{"id": f"r{i}", "question": "q" * (1 + 7 * i % 5), "answer": i, "question_type": "sum"} for i in range(n)]
