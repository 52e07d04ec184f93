"""G independent completions per prompt: plain GRPO, to which all other policies reduce without branching."""

from __future__ import annotations

from trainer.policies.policy import Policy
from trainer.policies.segment import Segment


class ChainPolicy(Policy):
    """Samples `num_generations` completions of at most `max_tokens` tokens, without forks.

    >>> ChainPolicy(num_generations=16, max_tokens=512).start().count
    16
    """

    def __init__(self, num_generations: int, max_tokens: int):
        self.leaves = num_generations
        self.segment = Segment("segment", num_generations, max_tokens)

    def start(self) -> Segment:
        return self.segment
