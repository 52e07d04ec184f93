"""Fork rules: which tokens of a growing completion fork, and where the text allows it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RULES = ("entropy", "random", "fixed", "surprisal")
START = math.log(2)  # nats; the initial threshold, the entropy of a fair coin
INSIDE_TAG = re.compile(r"<[^<>\s]*$")


@dataclass(frozen=True)
class ForkRule:
    """A token is a candidate when its score is above the threshold.

    Args:
        name: of the score. `entropy`: of the distribution that the token was sampled from, in nats (TreeAdv, arXiv
            2601.03703); `surprisal`: minus the log-probability of the token, in nats (as TreeRL, arXiv 2506.11902);
            `random`: a uniform number in [0, 1), a function of the seed, the tree and the path;
            `fixed`: 1, so that only the gap between forks matters (segments of equal length, as in TreePO, arXiv
            2508.17445).
        threshold: that the score must exceed.
        seed: of the rule `random`.

    >>> ForkRule("entropy", 0.5).forks(entropy=0.6, logprob=-0.1, tree="", path=[7])
    True
    """

    name: str
    threshold: float
    seed: str = ""

    def __post_init__(self):
        assert self.name in RULES, self.name

    def score(self, entropy: float, logprob: float, tree: str, path: Sequence[int]) -> float:
        """The score of the last token of `path`, the tokens of the completion so far; `tree` names its tree."""
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
        """The rows (R,) for which `forks` may be true: a cheap first test at each step. Both arguments (R,)."""
        if self.name == "entropy":
            return entropies > self.threshold
        if self.name == "surprisal":
            return -logprobs > self.threshold
        return entropies == entropies  # all: these scores do not depend on the distribution


@dataclass(frozen=True)
class OpenText:
    """Where in a completion a fork is allowed: outside tags, and before the answer begins.

    A fork inside a tag (`</thi`) would give siblings that differ only in a broken tag. Media placeholders need no
    check: they are never sampled.

    Args:
        decode: token ids -> text, with special tokens.
        answer_marks: texts that start the answer, such as `</think>` and `<answer>`; empty: the answer may fork too.
    """

    decode: Callable[[list[int]], str]
    answer_marks: tuple[str, ...] = ()

    def allows(self, before: list[int]) -> bool:
        """Whether a fork may follow these tokens, the completion so far."""
        text = self.decode(before)
        return not self._answers(text) and INSIDE_TAG.search(text) is None

    def open_length(self, before: list[int], token_ids: list[int]) -> int:
        """How many of `token_ids`, which follow `before`, come before the answer starts."""
        if not self.answer_marks:
            return len(token_ids)
        low, high = 0, len(token_ids)  # monotone, so bisect
        while low < high:
            middle = (low + high) // 2
            if self._answers(self.decode(before + token_ids[:middle])):
                high = middle
            else:
                low = middle + 1
        return low

    def _answers(self, text: str) -> bool:
        return any(mark in text for mark in self.answer_marks)
