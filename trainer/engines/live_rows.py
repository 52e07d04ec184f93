"""Which node each live row is growing, what it has sampled so far, and when it ends or forks."""

# R live rows, B prompts, S columns sampled so far, V vocabulary

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.engines.stop_strings import StopMatcher
from trainer.policies.policy import Policy
from trainer.policies.segment import Call, Segment
from trainer.tree import PROMPT, Node, Tree

ROOM = 128


@dataclass(frozen=True)
class Fork:
    """What to sample below a node."""

    prompt: int
    node: int
    segment: Segment


@dataclass
class Row:
    """One live row: the node it grows (or that has just ended, if `fork` is set), and its first and last column.

    `above`: tokens of the node's segment that a fork inside the segment has moved to its ancestors.
    """

    prompt: int
    node: int
    segment: Segment | None = None
    start: int = 0
    last: int = -1
    matchers: tuple[StopMatcher, ...] = ()
    above: tuple[int, ...] = ()
    fork: Fork | None = None


@dataclass(frozen=True)
class FinishedRow:
    """A row with nothing left to sample: a leaf, or a node that waits for a call."""

    row: int
    prompt: int
    node: int
    call: Call | None


class LiveRows:
    """The rows of one batch. All of them sample in the same column, whatever their depth.

    A node's tokens are copied out of the columns when it ends. Callers that hold other tensors in row order must
    reorder them by the `sources` that the methods return: row i is a copy of the old row sources[i].

    Args:
        trees: the trees to fill, one per prompt.
        first: what to sample after each prompt.
        eos_ids: tokens that end a rollout.
        matcher: returns the StopMatcher of a stop string.
        vocab_size: V.
        device: of the sampled tokens.
    """

    def __init__(
        self,
        trees: list[Tree],
        first: Segment,
        eos_ids: list[int],
        matcher: Callable[[str], StopMatcher],
        vocab_size: int,
        device: torch.device,
    ):
        self.trees, self.matcher, self.eos_ids = trees, matcher, set(eos_ids)
        self.columns, self.rows = 0, []
        self._tokens = torch.zeros(0, 0, dtype=torch.long, device=device)
        self._stats = torch.zeros(2, 0, 0, device=device)
        self._ends = torch.zeros(1, vocab_size, dtype=torch.bool, device=device)
        self._ends[0, eos_ids] = True
        self._table_of: dict[tuple[StopMatcher, ...], int] = {(): 0}
        self.enter([Fork(prompt, PROMPT, first) for prompt in range(len(trees))])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def prompts(self) -> set[int]:
        """The prompts with live rows."""
        return {row.prompt for row in self.rows}

    @property
    def newest(self) -> Tensor:
        """The last sampled token of each row, (R,)."""
        return self._tokens[:, self.columns - 1]

    @property
    def forking(self) -> list[tuple[int, Fork]]:
        """(index, fork) of the rows that wait for children."""
        return [(index, row.fork) for index, row in enumerate(self.rows) if row.fork is not None]

    def enter(self, forks: list[Fork]) -> None:
        """Appends one row per fork, which waits for its children."""
        if not self.rows:
            self.columns, self._tokens, self._stats = 0, self._tokens[:, :0], self._stats[:, :, :0]
        self.rows += [Row(fork.prompt, fork.node, fork=fork) for fork in forks]
        self._tokens = F.pad(self._tokens, (0, 0, 0, len(forks)))
        self._stats = F.pad(self._stats, (0, 0, 0, len(forks)))

    def fork(self) -> tuple[list[int], list[tuple[list[int], tuple[int, ...]]]]:
        """Replaces each row that waits for children by these.

        Returns the sources, and for each fork with distinct first tokens its rows and the tokens already taken (none).
        """
        sources, distinct = list(range(len(self.rows))), []
        for source, fork in self.forking:
            rows = [source, *range(len(sources), len(sources) + fork.segment.count - 1)]
            children = [self._child(fork) for _ in rows]
            self.rows[source] = children[0]
            self.rows += children[1:]
            sources += [source] * (len(rows) - 1)
            if fork.segment.distinct:
                distinct.append((rows, ()))
        self._reorder(sources)
        return sources, distinct

    def append(self, tokens: Tensor, logprobs: Tensor, entropies: Tensor) -> None:
        """Appends one sampled token per row."""
        if self.columns == self._tokens.shape[1]:
            self._tokens, self._stats = F.pad(self._tokens, (0, ROOM)), F.pad(self._stats, (0, ROOM))
        self.columns += 1
        self._write(slice(None), tokens, logprobs, entropies)

    def finish(self, policy: Policy) -> list[FinishedRow]:
        """Closes nodes that ended with the last token, asks the policy what follows; returns rows to `drop`."""
        column = self.columns - 1
        may_end = self._ends[self._table, self._tokens[:, column]] | (self._last == column)
        finished = []
        for index in may_end.nonzero().flatten().tolist():
            row = self.rows[index]
            token_ids = self.grown(index)
            ended = self._ended(row, token_ids)
            if ended is None:
                continue
            tree = self.trees[row.prompt]
            self._close(index, len(token_ids), "length" if ended == "length" else "ok")
            following = policy.next(tree, row.node, ended)
            if isinstance(following, Segment):
                row.fork = Fork(row.prompt, row.node, following)
            else:
                finished.append(FinishedRow(index, row.prompt, row.node, following))
        return finished

    def drop(self, finished: list[FinishedRow]) -> list[int]:
        """Removes rows; the last rows move into their places. Returns the sources."""
        leaving = {row.row for row in finished}
        count = len(self.rows) - len(leaving)
        movers = [index for index in range(count, len(self.rows)) if index not in leaving]
        sources = [movers.pop() if index in leaving else index for index in range(count)]
        self.rows = [self.rows[source] for source in sources]
        self._reorder(sources)
        return sources

    def grown(self, index: int) -> list[int]:
        """The tokens a row has sampled for its node."""
        return self._tokens[index, self.rows[index].start : self.columns].tolist()

    def split(self, index: int, count: int) -> list[int]:
        """Forks a row before its newest token into `count` nodes, itself included; the others have no token yet.

        Returns the indices of the new rows; `spread` completes them.
        """
        row, tree = self.rows[index], self.trees[self.rows[index].prompt]
        token_ids = self.grown(index)
        if len(token_ids) > 1:
            self._close(index, len(token_ids) - 1, "ok")
            whole = tree.nodes[row.node]
            node = tree.add(Node(row.node, whole.kind, group=whole.group))
            above = row.above + tuple(token_ids[:-1])
            row = self.rows[index] = replace(row, node=node, start=self.columns - 1, above=above)
        first = tree.nodes[row.node]
        new = range(len(self.rows), len(self.rows) + count - 1)
        self.rows += [replace(row, node=tree.add(Node(first.parent, first.kind, group=first.group))) for _ in new]
        return list(new)

    def spread(self, sources: list[int], rows: list[int], drawn: tuple[Tensor, Tensor, Tensor]) -> None:
        """Completes `split`: reorders rows by `sources`, and stores what was `drawn` as the last column of `rows`."""
        self._reorder(sources)
        self._write(torch.tensor(rows, device=self._tokens.device), *drawn)

    def history(self, prompts: list) -> Tensor:
        """Ids (R, T) of each row, prompt included; shorter rows are padded on the left with their first id."""
        paths = []
        for index, row in enumerate(self.rows):
            tree = self.trees[row.prompt]
            paths.append([*prompts[row.prompt].ids, *tree.tokens(tree.nodes[row.node].parent), *self.grown(index)])
        longest = max(map(len, paths))
        filled = [path[:1] * (longest - len(path)) + path for path in paths]
        return torch.tensor(filled, device=self._tokens.device)

    def temperatures(self, usual: float) -> Tensor | None:
        """(R, 1), or None if all rows have the usual temperature."""
        values = [usual if row.segment.temperature is None else row.segment.temperature for row in self.rows]
        return None if set(values) == {usual} else torch.tensor(values, device=self._tokens.device)[:, None]

    def _child(self, fork: Fork) -> Row:
        segment, tree = fork.segment, self.trees[fork.prompt]
        node = tree.add(Node(fork.node, segment.kind, group=_group(tree, fork)))
        matchers = tuple(self.matcher(stop) for stop in segment.stops)
        return Row(fork.prompt, node, segment, self.columns, self.columns + segment.max_tokens - 1, matchers)

    def _ended(self, row: Row, token_ids: list[int]) -> str | None:
        """How the row's node ended, None if it did not; a stop string takes precedence over EOS and the limit."""
        newest = token_ids[-1]
        whole, goes_on = [*row.above, *token_ids], row.segment.goes_on
        stopped = any(matcher.candidates[newest] and matcher.matches(whole) for matcher in row.matchers)
        if stopped and not (goes_on is not None and goes_on(whole)):
            return "stop"
        if newest in self.eos_ids:
            return "eos"
        return "length" if row.last == self.columns - 1 else None

    def _close(self, index: int, count: int, status: str) -> None:
        """Gives the row's node its first `count` tokens."""
        row = self.rows[index]
        node, end = self.trees[row.prompt].nodes[row.node], row.start + count
        node.token_ids = self._tokens[index, row.start : end].tolist()
        node.logprobs, node.entropies = self._stats[:, index, row.start : end].tolist()
        node.status = status

    def _write(self, rows, tokens: Tensor, logprobs: Tensor, entropies: Tensor) -> None:
        self._tokens[rows, self.columns - 1] = tokens
        self._stats[0, rows, self.columns - 1] = logprobs
        self._stats[1, rows, self.columns - 1] = entropies

    def _reorder(self, sources: list[int]) -> None:
        device = self._tokens.device
        index = torch.tensor(sources, dtype=torch.long, device=device)
        self._tokens, self._stats = self._tokens[index], self._stats[:, index]
        for matchers in {row.matchers for row in self.rows}.difference(self._table_of):
            self._table_of[matchers] = len(self._ends)
            ends = torch.stack([matcher.candidates for matcher in matchers]).any(0).to(device)
            self._ends = torch.cat([self._ends, (self._ends[0] | ends)[None]])
        self._table = torch.tensor([self._table_of[row.matchers] for row in self.rows], dtype=torch.long, device=device)
        self._last = torch.tensor([row.last for row in self.rows], dtype=torch.long, device=device)


def _group(tree: Tree, fork: Fork) -> int:
    """The group that the fork's next node founds or joins."""
    if fork.segment.group is not None:
        return fork.segment.group
    if fork.node != PROMPT:
        return tree.nodes[fork.node].group
    return 1 + max((node.group for node in tree.nodes if node.parent == PROMPT), default=-1)
