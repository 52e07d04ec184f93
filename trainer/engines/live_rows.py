"""Which node each live row is growing, what it has sampled so far, and where it ends or forks."""

# R live rows, B prompts, S tokens sampled below the prompt, V vocabulary

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.engines.stop_strings import StopMatcher
from trainer.policies.segment import Policy, Segment
from trainer.tree import PROMPT, Node, Tree

ROOM = 128


@dataclass
class Row:
    """One live row: the node it is growing (PROMPT before the first one), and that node's first and last column."""

    prompt: int
    node: int
    start: int = 0
    last: int = -1
    matcher: StopMatcher | None = None
    fork: Segment | None = None


class LiveRows:
    """The rows of one batch. All of them sample in the same column, so a row's column is its depth below the prompt.

    A row's buffers hold its whole path, so that a child starts with a copy of its parent's. Nodes are cut out of the
    buffers when they end. Whoever holds more tensors in row order follows the `sources` of `fork` and `finish`.

    Args:
        trees: the trees to fill, one a prompt.
        first: what to sample after each prompt.
        eos_ids: tokens that end a rollout.
        matcher: gives the StopMatcher of a stop string.
        vocab_size: V.
        device: where the sampled tokens are.
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
        self.rows = [Row(prompt=i, node=PROMPT, fork=first) for i in range(len(trees))]
        self.columns, self._waiting = 0, True
        self._path = torch.zeros(len(trees), 0, dtype=torch.long, device=device)
        self._figures = torch.zeros(2, len(trees), 0, device=device)
        self._ends = torch.zeros(1, vocab_size, dtype=torch.bool, device=device)
        self._ends[0, eos_ids] = True
        self._table_of: dict[StopMatcher | None, int] = {None: 0}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def prompts(self) -> list[int]:
        """The prompt index of each row."""
        return [row.prompt for row in self.rows]

    @property
    def path(self) -> Tensor:
        """(R, S) tokens of each row below its prompt."""
        return self._path[:, : self.columns]

    @property
    def newest(self) -> Tensor:
        """The last sampled token of each row, (R,)."""
        return self._path[:, self.columns - 1]

    def fork(self) -> list[int] | None:
        """Replaces each row that waits for children by them.

        Returns the source row of every new row, None if none waits.
        """
        if not self._waiting:
            return None
        self._waiting = False
        sources = list(range(len(self.rows)))
        for source, row in enumerate(self.rows[:]):
            if row.fork is None:
                continue
            children = [self._child(row) for _ in range(row.fork.count)]
            self.rows[source] = children[0]
            self.rows += children[1:]
            sources += [source] * (row.fork.count - 1)
        self._reorder(sources)
        return sources

    def append(self, tokens: Tensor, logprobs: Tensor, entropies: Tensor) -> None:
        """Takes one sampled token a row."""
        if self.columns == self._path.shape[1]:
            self._path, self._figures = F.pad(self._path, (0, ROOM)), F.pad(self._figures, (0, ROOM))
        self._path[:, self.columns] = tokens
        self._figures[0, :, self.columns] = logprobs
        self._figures[1, :, self.columns] = entropies
        self.columns += 1

    def finish(self, policy: Policy) -> list[int] | None:
        """Closes the nodes that ended with the last token and asks the policy what follows.

        Leaves give up their row, the last rows move into the holes. Returns the source row of every row that is left,
        None if no row left.
        """
        column = self.columns - 1
        may_end = self._ends[self._table, self._path[:, column]] | (self._last == column)
        leaving = set()
        for index in may_end.nonzero().flatten().tolist():
            row = self.rows[index]
            token_ids = self._path[index, row.start : self.columns].tolist()
            ended = self._ended(row, token_ids)
            if ended is None:
                continue
            tree = self.trees[row.prompt]
            self._close(tree.nodes[row.node], index, token_ids, ended)
            row.fork = policy.next(tree, row.node, ended)
            if row.fork is None:
                leaving.add(index)
            else:
                self._waiting = True
        if not leaving:
            return None
        count = len(self.rows) - len(leaving)
        movers = [index for index in range(count, len(self.rows)) if index not in leaving]
        sources = [movers.pop() if index in leaving else index for index in range(count)]
        self.rows = [self.rows[source] for source in sources]
        self._reorder(sources)
        return sources

    def _child(self, row: Row) -> Row:
        segment = row.fork
        node = self.trees[row.prompt].add(Node(row.node, segment.kind))
        matcher = self.matcher(segment.stop) if segment.stop is not None else None
        return Row(row.prompt, node, self.columns, self.columns + segment.max_tokens - 1, matcher)

    def _ended(self, row: Row, token_ids: list[int]) -> str | None:
        """How the row's node ended with its last token; closing comes before the end of sequence and the limit."""
        if row.matcher is not None and row.matcher.candidates[token_ids[-1]] and row.matcher.found(token_ids):
            return "stop"
        if token_ids[-1] in self.eos_ids:
            return "eos"
        return "length" if row.last == self.columns - 1 else None

    def _close(self, node: Node, index: int, token_ids: list[int], ended: str) -> None:
        start = self.rows[index].start
        node.token_ids = token_ids
        node.logprobs, node.entropies = self._figures[:, index, start : self.columns].tolist()
        node.status = "length" if ended == "length" else "ok"

    def _reorder(self, sources: list[int]) -> None:
        device = self._path.device
        index = torch.tensor(sources, dtype=torch.long, device=device)
        self._path, self._figures = self._path[index], self._figures[:, index]
        for matcher in {row.matcher for row in self.rows}.difference(self._table_of):
            self._table_of[matcher] = len(self._ends)
            self._ends = torch.cat([self._ends, (self._ends[0] | matcher.candidates.to(device))[None]])
        self._table = torch.tensor([self._table_of[row.matcher] for row in self.rows], device=device)
        self._last = torch.tensor([row.last for row in self.rows], device=device)
