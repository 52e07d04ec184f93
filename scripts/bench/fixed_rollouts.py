"""Rollouts that depend only on the prompt's id, so that every layout of processes trains on the same trees."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from contextlib import contextmanager

from trainer.grpo_ma_trainer import GRPOMATrainer
from trainer.tree import PROMPT, Node, Tree

Write = Callable[[str, object, int], Tree]  # record id, policy, rank -> tree


class FixedRollouts(GRPOMATrainer):
    """GRPOMATrainer whose trees are written by `write(record id, policy, rank)` instead of sampled.

    Everything else is as in a real run: weights are gathered for the rollout and restored, although nothing reads them.
    """

    def __init__(self, *args, write: Write, **kwargs):
        self._rollout_of = write
        super().__init__(*args, **kwargs)

    @contextmanager
    def _generating(self, temperature: float):
        with super()._generating(temperature):
            yield Writer(self._rollout_of, self.accelerator.process_index, self.eos_token_ids[0])


class Writer:
    """An engine whose trees come from a function."""

    def __init__(self, write: Write, rank: int, end: int):
        self.write, self.rank, self.end = write, rank, end

    def grow(self, prompts: list, policy, prompt_ids: list[str]) -> list[Tree]:
        return [
            self.write(name, policy, self.rank) if prompt is not None else self._failed(name, policy)
            for prompt, name in zip(prompts, prompt_ids, strict=True)
        ]

    def _failed(self, name: str, policy) -> Tree:
        return Tree(name, [Node(PROMPT, policy.start().kind, [self.end], sampled=False, status="failed")])


def hashed_tree(prompt_id: str, policy, rank: int, spans_ranks: bool = False) -> Tree:
    """K thoughts with M answers each, with ids and lengths derived from the prompt's id and the place in the group.

    `spans_ranks`: the ranks share one large group, in which this rank's thoughts follow those of the lower ranks.
    """
    answers = policy.answer.count
    first = rank * policy.thought.count if spans_ranks else 0
    tree = Tree(prompt_id)
    for k in range(first, first + policy.thought.count):
        thought = tree.add(written(PROMPT, "thought", f"{prompt_id}/{k}", policy.thought.max_tokens))
        tree.nodes[thought].group = k - first
        for m in range(answers):
            answer = tree.add(written(thought, "answer", f"{prompt_id}/{k}/{m}", policy.answer.max_tokens))
            tree.nodes[answer].group = k - first
    return tree


def written(parent: int, kind: str, place: str, longest: int) -> Node:
    """A node of 1 to `longest` tokens, which are plain text in the demo's tokenizer."""
    source = random.Random(hashlib.sha256(place.encode()).digest())
    ids = [source.randrange(300, 600) for _ in range(source.randint(1, longest))]
    return Node(parent, kind, ids, logprobs=[-1.0] * len(ids))


def text_reward(completions: list[str], **kwargs) -> list[float]:
    """A different reward for almost every completion, from its text alone."""
    return [sum(map(ord, text)) % 97 / 97 for text in completions]
