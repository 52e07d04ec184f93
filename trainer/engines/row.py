"""One live row, in whichever engine: the node it grows, what it sampled for it, and when it ends or forks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from trainer.engines.calls import Arrival
from trainer.engines.stop_strings import StopMatcher
from trainer.policies.segment import Segment
from trainer.tree import PROMPT, Node, Tree


@dataclass(frozen=True)
class Fork:
    """What to sample below a node."""

    prompt: int
    node: int
    segment: Segment


@dataclass
class Row:
    """One live row: the node that it grows (or that has just ended, if `fork` is set), and what it sampled for it.

    `above`: tokens of the node's segment that a fork inside the segment has moved to its ancestors.
    """

    prompt: int
    node: int
    segment: Segment | None = None
    matchers: tuple[StopMatcher, ...] = ()
    above: tuple[int, ...] = ()
    fork: Fork | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    @classmethod
    def below(cls, fork: Fork, tree: Tree, matcher: Callable[[str], StopMatcher]) -> Row:
        """A row with a new node, one of the fork's continuations."""
        segment = fork.segment
        node = tree.add(Node(fork.node, segment.kind, group=_group(tree, fork)))
        return cls(fork.prompt, node, segment, tuple(matcher(stop) for stop in segment.stops))

    @property
    def left(self) -> int:
        """Tokens that the row may still sample."""
        return self.segment.max_tokens - len(self.above) - len(self.token_ids)

    def append(self, token_id: int, logprob: float, entropy: float) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.entropies.append(entropy)

    def ended(self, eos_ids: Collection[int]) -> str | None:
        """How the row's node ended, None if it did not; a stop string takes precedence over EOS and the limit."""
        newest = self.token_ids[-1]
        if self.matchers and (matchers := [each for each in self.matchers if newest in each.candidates]):
            whole, goes_on = [*self.above, *self.token_ids], self.segment.goes_on
            stopped = any(matcher.matches(whole) for matcher in matchers)
            if stopped and not (goes_on is not None and goes_on(whole)):
                return "stop"
        if newest in eos_ids:
            return "eos"
        return "length" if self.left == 0 else None

    def close(self, tree: Tree, ended: str) -> None:
        """Gives the node its tokens."""
        self._give(tree, len(self.token_ids), "length" if ended == "length" else "ok")

    def split(self, tree: Tree, count: int) -> list[Row]:
        """Forks before the newest token into `count` nodes, the row's own included; returns the other rows.

        The node ends before the token (unless it has no other), and the row goes on in the first child. The others
        have no token yet.
        """
        if len(self.token_ids) > 1:
            self._give(tree, len(self.token_ids) - 1, "ok")
            whole = tree.nodes[self.node]
            self.above += tuple(self.token_ids[:-1])
            self.node = tree.add(Node(self.node, whole.kind, group=whole.group))
            for values in (self.token_ids, self.logprobs, self.entropies):
                del values[:-1]
        first = tree.nodes[self.node]
        siblings = []
        for _ in range(count - 1):
            node = tree.add(Node(first.parent, first.kind, group=first.group))
            siblings.append(replace(self, node=node, token_ids=[], logprobs=[], entropies=[]))
        return siblings

    def _give(self, tree: Tree, count: int, status: str) -> None:
        node = tree.nodes[self.node]
        node.token_ids, node.status = self.token_ids[:count], status
        node.logprobs, node.entropies = self.logprobs[:count], self.entropies[:count]


def add_observation(tree: Tree, arrival: Arrival) -> int:
    """Adds the result of a call below the node that made it; returns the new node."""
    seen = arrival.observed
    assert seen.token_ids, f"an observation of tree {tree.prompt_id} has no tokens"
    return tree.add(
        Node(
            arrival.node,
            "observation",
            list(seen.token_ids),
            sampled=False,
            status=seen.status,
            group=tree.nodes[arrival.node].group,
            media=seen.media,
            reward=seen.reward,
            extra=seen.extra,
        )
    )


def _group(tree: Tree, fork: Fork) -> int:
    """The group that the fork's next node founds or joins."""
    if fork.segment.group is not None:
        return fork.segment.group
    if fork.node != PROMPT:
        return tree.nodes[fork.node].group
    return 1 + max((node.group for node in tree.nodes if node.parent == PROMPT), default=-1)
