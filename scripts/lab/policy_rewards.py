"""Rewards of many answers to the same thoughts, sampled from fixed weights; one file per prompt, made once."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from dataset.dataset_grpo import build_dataset, load_media, read_row
from model.loading import load_policy
from task.task_loader import load_tasks
from trainer.budget.probe import rewards_by_thought
from trainer.engines.sampling import Sampling
from trainer.engines.transformers_engine import TransformersEngine
from trainer.policies.segment import Branch
from trainer.policies.thought_answer import ThoughtAnswerPolicy
from trainer.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
MODEL, DATA = ROOT / "scripts/demo/tiny_model", ROOT / "metadata/demo/trajectory_train.yaml"
WEIGHTS = [0.2, 1.0]  # of format and accuracy, as in the demo recipes
LENGTHS = {"max_thought_length": 80, "max_answer_length": 80}
SPARE = 2  # thoughts in addition, in place of those that never close
ROUND = 32  # answers per thought that grow together


class AnswersInRounds(ThoughtAnswerPolicy):
    """The answers of each closed thought in rounds of `answer_num`, `rounds` of them, so that few rows are live."""

    expands = True

    def __init__(self, rounds: int, think_num: int, answer_num: int, **lengths):
        super().__init__(think_num, answer_num, **lengths, thought_end="</think>")
        self.total = rounds * answer_num

    def expand(self, tree: Tree) -> list[Branch]:
        closed = [i for i, node in enumerate(tree.nodes) if node.kind == "thought" and node.status == "ok"]
        if not closed or sum(node.parent == closed[0] for node in tree.nodes) >= self.total:
            return []
        return [Branch(i, self.answer) for i in closed]


def sampled_rewards(args) -> list[np.ndarray]:
    """Rewards of the shipped tiny model at temperature 1, one (closed thoughts, answers) array per prompt of the demo.

    Args:
        args: prompts, thoughts (of which fewer may close), answers, seed and output_dir, as `variance.py` parses them.
    """
    torch.set_num_threads(1)
    tasks = load_tasks()
    module, model, processor = load_policy(str(MODEL), dtype="float32")
    module.processor = processor
    rows = build_dataset([str(DATA)], tasks)
    ends, forbidden = module.eos_token_ids(processor), module.forbidden_token_ids(processor)
    engine = TransformersEngine(model.eval(), module, processor.tokenizer, Sampling(), ends, forbidden)
    policy = AnswersInRounds(max(1, args.answers // ROUND), args.thoughts + SPARE, min(ROUND, args.answers), **LENGTHS)
    found = []
    for i in range(args.prompts):
        file = args.output_dir / f"prompt{i}-{args.thoughts}x{args.answers}-seed{args.seed}.npy"
        if not file.exists():
            record = read_row(rows[i])
            prompt = module.encode(record["messages"], *load_media(record))
            torch.manual_seed(1000 * args.seed + i)
            (tree,) = engine.grow([prompt], policy, [record["id"]])
            decode = lambda ids: module.completion_texts(ids, ends)  # noqa: E731
            np.save(file, rewards_by_thought(tree, prompt, record, tasks, WEIGHTS, decode))
            print(f"{file.name}: {engine.stats['generated_tokens']:,} tokens", flush=True)
        found.append(np.load(file)[: args.thoughts])
    return found
