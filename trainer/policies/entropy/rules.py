"""Which tokens of a growing completion are worth a fork, and where the text allows one."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RULES = ("entropy", "random", "fixed", "surprisal")
START = math.log(2)  # nats; the threshold before anything was measured: as unsure as a fair coin
INSIDE_TAG = re.compile(r"<[^<>\s]*$")


@dataclass(frozen=True)
class ForkRule:
    """A token is a candidate when its score is above the threshold.

    Args:
        name: of the score. `entropy`: of the distribution the token was drawn from, in nats (TreeAdv, arXiv
            2601.03703); `surprisal`: minus the log-probability of the token, in nats (as TreeRL, arXiv 2506.11902);
            `random`: a uniform number in [0, 1), a function of the seed, the tree and the path;
            `fixed`: 1, so that only the gap between forks decides (segments of equal length, as TreePO, arXiv
            2508.17445).
        threshold: what the score must exceed.
        seed: of `random`.

    >>> ForkRule("entropy", 0.5).forks(entropy=0.6, logprob=-0.1, tree="", path=[7])
    True
    """

    name: str
    threshold: float
    seed: str = ""

    def __post_init__(self):
        assert self.name in RULES, self.name

    def score(self, entropy: float, logprob: float, tree: str, path: Sequence[int]) -> float:
        """The score of the last token of `path`, all tokens of a completion down to it; `tree` names its tree."""
        if self.name == "entropy":
            return entropy
        if self.name == "surprisal":
            return -logprob
        if self.name == "random":
            return random.Random(f"{self.seed} {tree} {list(path)}").random()
        return 1.0

    def forks(self, entropy: float, logprob: float, tree: str, path: Sequence[int]) -> bool:
        return self.score(entropy, logprob, tree, path) > self.threshold

    def candidates(self, entropies, logprobs):
        """The rows (R,) for which `forks` may say yes; the cheap first test at each step. Both arguments (R,)."""
        if self.name == "entropy":
            return entropies > self.threshold
        if self.name == "surprisal":
            return -logprobs > self.threshold
        return entropies == entropies  # all: these scores are not a matter of the distribution


@dataclass(frozen=True)
class OpenText:
    """Where in a completion a fork is allowed: outside tags, and before the answer begins.

    A place inside a tag (`</thi`) would give siblings that differ in nothing but the damage. Media placeholders need no
    test: they are never sampled, so a completion has none.

    Args:
        decode: token ids to text, special tokens kept.
        answer_marks: texts that begin the answer, such as `</think>` and `<answer>`; none: the answer may fork too.
    """

    decode: Callable[[list[int]], str]
    answer_marks: tuple[str, ...] = ()

    def allows(self, before: list[int]) -> bool:
        """Whether a fork may follow these tokens, the completion so far."""
        text = self.decode(before)
        return not self._answers(text) and INSIDE_TAG.search(text) is None

    def open_length(self, before: list[int], token_ids: list[int]) -> int:
        """How many of `token_ids`, which follow `before`, are drawn before the answer begins."""
        if not self.answer_marks:
            return len(token_ids)
        low, high = 0, len(token_ids)  # once the answer began it stays so: bisect
        while low < high:
            middle = (low + high) // 2
            if self._answers(self.decode(before + token_ids[:middle])):
                high = middle
            else:
                low = middle + 1
        return low

    def _answers(self, text: str) -> bool:
        return any(mark in text for mark in self.answer_marks)
