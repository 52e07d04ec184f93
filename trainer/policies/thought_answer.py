"""K thoughts per prompt, M answers per closed thought (GRPO-MA, arXiv 2509.24494)."""

from __future__ import annotations

from trainer.policies.policy import Policy
from trainer.policies.segment import Segment
from trainer.tree import Tree


class ThoughtAnswerPolicy(Policy):
    """Samples `think_num` thoughts up to `thought_end`, then `answer_num` answers after each closed thought.

    A thought that ends otherwise (end of sequence, length) gets the status `unclosed` and no answers: it is one leaf,
    which `Rollout` repeats to `answer_num` rows.

    >>> ThoughtAnswerPolicy(4, 3, max_thought_length=128, max_answer_length=32, thought_end="</think>").leaves
    12
    """

    def __init__(
        self, think_num: int, answer_num: int, max_thought_length: int, max_answer_length: int, thought_end: str
    ):
        self.leaves = think_num * answer_num
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
