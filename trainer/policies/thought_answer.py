"""K thoughts per prompt, M answers per closed thought (GRPO-MA, arXiv 2509.24494)."""

from __future__ import annotations

from dataclasses import replace

from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Segment
from trainer.tree import Tree


class ThoughtAnswerPolicy(Policy):
    """Samples `think_num` thoughts up to `thought_end`, then `answer_num` answers after each closed thought.

    A thought that ends otherwise (end of sequence, length) gets the status `unclosed` and no answers: it is one leaf,
    which `Rollout` repeats to `answer_num` rows.

    Args:
        extends: whether closed thoughts may get further answers, see `Policy`.

    >>> ThoughtAnswerPolicy(4, 3, max_thought_length=128, max_answer_length=32, thought_end="</think>").leaves
    12
    """

    def __init__(
        self,
        think_num: int,
        answer_num: int,
        max_thought_length: int,
        max_answer_length: int,
        thought_end: str,
        extends: bool = False,
    ):
        self.leaves, self.extends = think_num * answer_num, extends
        self.thought = Segment("thought", think_num, max_thought_length, stop=thought_end)
        self.answer = Segment("answer", answer_num, max_answer_length)

    def start(self) -> Segment:
        return self.thought

    def next(self, tree: Tree, node_index: int, ended: str) -> Segment | None:
        node = tree.nodes[node_index]
        if node.kind == "answer":
            return None
        if ended == "stop":
            return self.answer
        node.status = "unclosed"
        return None

    def further(self, tree: Tree, count: int) -> list[Branch]:
        """Further answers, spread over the closed thoughts as evenly as possible, the first ones first."""
        closed = [i for i, node in enumerate(tree.nodes) if node.kind == "thought" and node.status == "ok"]
        shares = [len(range(place, count, len(closed))) for place in range(len(closed))]
        return [
            Branch(node, replace(self.answer, count=share)) for node, share in zip(closed, shares, strict=True) if share
        ]
