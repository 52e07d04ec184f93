"""Tree-GRPO's rollout (arXiv 2509.21240): M agent chains, then L rounds of branches after N steps per tree.

A step is one turn of the model and its observation. A branch starts after a step that is not a leaf, drawn from torch's
default generator, and runs to its end; B branches start after each such step (one in the paper). A tree without such a
step (its chain answered at once) gets new chains instead, so every prompt has M * (L * N * B + 1) leaves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from trainer.policies.agent.calls import Point, ToolFailure
from trainer.policies.agent.forms import Turn
from trainer.policies.agent.metrics import agent_sums, leaf_report
from trainer.policies.agent.observation import Framer, NoRoom, TurnOutcome
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Observed, Segment
from trainer.tree import PROMPT, Tree

logger = logging.getLogger(__name__)
_logged: set[str] = set()  # kinds of failure that this process has logged


@dataclass(frozen=True)
class TreeShape:
    """Numbers of trees, branching nodes and rounds, and where branches start (see config/methods/tree_grpo.py).

    Attributes:
        branches: nodes per tree and round that branch (N).
        per_node: branches at each of them (B).
        temperature, top_k: of branches; None: as the rest of the tree.
    """

    trees: int
    branches: int = 0
    rounds: int = 0
    root: bool = False
    with_replacement: bool = False
    per_node: int = 1
    temperature: float | None = None
    top_k: int | None = None

    @property
    def leaves(self) -> int:
        return self.trees * (self.rounds * self.branches * self.per_node + 1)

    @property
    def of_branches(self) -> dict:
        """The sampling of branches, as arguments of a `Segment`."""
        return {"temperature": self.temperature, "top_k": self.top_k}

    def chosen(self, tree: Tree) -> list[tuple[int, int]]:
        """(node to branch after, group) of each branch of a round; the node is `PROMPT` for a new chain."""
        groups = [[(node, group) for node in self._chosen(tree, group)] for group in range(self.trees)]
        return [place for places in groups for place in places for _ in range(self.per_node)]

    def _chosen(self, tree: Tree, group: int) -> list[int]:
        """N nodes of one tree of the forest."""
        candidates = [node for node in branch_points(tree) if tree.nodes[node].group == group]
        if self.root or self.with_replacement or not candidates:
            candidates.append(PROMPT)
        count = len(candidates)
        if self.with_replacement:
            drawn = torch.randint(count, (self.branches,))
        else:
            once = torch.randperm(count)[: self.branches]
            drawn = torch.cat([once, torch.randint(count, (self.branches - len(once),))])
        return [candidates[i] for i in drawn.tolist()]


@dataclass(frozen=True)
class Limits:
    """Limits: turns with an observation; tokens per turn, observation and completion; seconds for a turn's calls."""

    turns: int
    turn_length: int
    observation_length: int
    length: int
    seconds: float


class AgentStepPolicy(Policy):
    """Grows trees whose nodes are turns ("step") and tool results ("observation").

    Args:
        shape, limits: see `TreeShape` and `Limits`.
        form: a TagForm or ToolCallForm.
        framer: encodes observations.
        environment_makers: prompt_id -> function that returns an environment whose episode has been started.
        tokenizer: decodes turns; its end token is the placeholder for an observation that could not be made.
        opened: the tag of a thought with which the chat template's header of a turn ends, or "".
    """

    expands = True

    def __init__(
        self,
        shape: TreeShape,
        limits: Limits,
        form,
        framer: Framer,
        environment_makers: dict[str, Callable],
        tokenizer,
        opened: str = "",
    ):
        self.opened = opened
        self.shape, self.limits, self.form, self.framer = shape, limits, form, framer
        self.environment_makers, self.tokenizer = environment_makers, tokenizer
        self.leaves = shape.leaves
        self._roots: dict[int, Point] = {}
        self._rounds: dict[int, int] = {}

    def start(self) -> Segment:
        return self._segment(0, count=self.shape.trees)

    def next(self, tree: Tree, node_index: int, ended: str) -> Segment | Call | None:
        node = tree.nodes[node_index]
        used = len(tree.tokens(node_index))
        if node.kind == "observation":
            ended_here = node.extra.error is not None or node.status != "ok"
            return None if ended_here else self._segment(used, **self._sampling(tree, node_index))
        text = self._text(node.token_ids, first=node.parent == PROMPT)
        turn = node.extra = self.form.read(text, ended)
        turns = sum(tree.nodes[i].kind == "observation" for i in tree.path(node_index))
        if turn.answered or turns == self.limits.turns:
            return None
        room = self.limits.length - used - 1  # the turn after the observation needs at least one token
        if room < 1:
            node.status = "length"
            return None
        above = node.parent
        point = self._root(tree) if above == PROMPT else tree.nodes[above].extra.point
        return Call(partial(self._observe, point, turn, room))

    def expand(self, tree: Tree) -> list[Branch]:
        done = self._rounds.get(id(tree), 0)
        if done == self.shape.rounds or not self.shape.branches:
            return []
        self._rounds[id(tree)] = done + 1
        branches = []
        for node, group in self.shape.chosen(tree):
            used = 0 if node == PROMPT else len(tree.tokens(node))
            branches.append(Branch(node, self._segment(used, group=group, **self.shape.of_branches)))
        return branches

    def metrics(self, trees: list[Tree]) -> dict[str, tuple[float, float]]:
        return agent_sums(trees)

    def report(self, tree: Tree, leaf: int) -> dict:
        """Columns of a prediction: turns, tool_calls, invalid_turns, tool_error (its kind, or None)."""
        return leaf_report(tree, leaf)

    def _segment(self, used: int, count: int = 1, group: int | None = None, **sampling) -> Segment:
        length = min(self.limits.turn_length, self.limits.length - used)
        goes_on = partial(self._in_thought, first=used == 0) if self.form.stops else None
        return Segment("step", count, length, self.form.stops or None, goes_on, group=group, **sampling)

    def _in_thought(self, token_ids: list[int], first: bool) -> bool:
        return self.form.in_thought(self._text(token_ids, first))

    def _text(self, token_ids: list[int], first: bool) -> str:
        """The text of a turn, with the tag of a thought that its header opened."""
        opened = self.opened if first or self.form.every_turn else ""
        return opened + self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _sampling(self, tree: Tree, node_index: int) -> dict:
        """The sampling of a turn: that of branches below a step that is not the first child (or not a first chain)."""
        if self.shape.temperature is None and self.shape.top_k is None:
            return {}
        for i in tree.path(node_index):
            before = [j for j in range(i) if tree.nodes[j].parent == tree.nodes[i].parent]
            if len(before) >= (self.shape.trees if tree.nodes[i].parent == PROMPT else 1):
                return self.shape.of_branches
        return {}

    def _root(self, tree: Tree) -> Point:
        return self._roots.setdefault(id(tree), Point(self.environment_makers[tree.prompt_id]))

    def _observe(self, point: Point, turn: Turn, room: int) -> Observed:
        """Makes the turn's calls and encodes the observation. Runs in a worker thread and never raises."""
        if turn.fault is not None:
            encoded = self.framer.message(turn.fault)
            if len(encoded.ids) > room:
                return self._ended("length", TurnOutcome(invalid=True))
            return Observed(list(encoded.ids), extra=TurnOutcome(point, invalid=True))
        started = time.monotonic()
        try:
            returned, fresh = point.act(turn.actions, self.limits.seconds)
        except BaseException as error:
            kind = error.kind if isinstance(error, ToolFailure) else "exception"
            _log_once(kind, error)
            return self._ended("failed", TurnOutcome(error=kind, seconds=time.monotonic() - started))
        seconds = time.monotonic() - started
        counts = {"calls": len(turn.actions), "replayed": returned.replayed} if fresh else {"reused": len(turn.actions)}
        outcome = TurnOutcome(returned.point, faults=returned.faults, seconds=seconds, **counts)
        try:
            encoded, outcome.cut = self.framer.observation(returned.results, min(room, self.limits.observation_length))
        except NoRoom:
            return self._ended("length", outcome, returned.reward)
        except Exception as error:
            _log_once("encoding", error)
            outcome.error = "encoding"
            return self._ended("failed", outcome)
        media = encoded if encoded.media else None
        return Observed(list(encoded.ids), media=media, reward=returned.reward, extra=outcome)

    def _ended(self, status: str, outcome: TurnOutcome, reward: float = 0.0) -> Observed:
        """An observation that ends the branch; one token, so that the node is not empty."""
        return Observed([self.tokenizer.eos_token_id], status=status, reward=reward, extra=outcome)


def branch_points(tree: Tree) -> list[int]:
    """The nodes after which a branch may start: observations that a turn followed."""
    parents = {node.parent for node in tree.nodes}
    return [i for i, node in enumerate(tree.nodes) if node.kind == "observation" and i in parents]


def _log_once(kind: str, error: BaseException) -> None:
    """Logs the first failure of each kind, which neither the model nor the metrics show."""
    if kind not in _logged:
        _logged.add(kind)
        logger.warning("a branch failed (%s): %s; further ones are counted as tool/errors/%s", kind, error, kind)
