"""Which node each live row is growing, what it has sampled so far, and when it ends or forks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainer.engines.row import Fork, Row
from trainer.engines.stop_strings import StopMatcher
from trainer.policies.policy import Policy
from trainer.policies.segment import Call, Segment
from trainer.tree import PROMPT, Tree


@dataclass(frozen=True)
class FinishedRow:
    """A row with nothing left to sample: a leaf, or a node that waits for a call."""

    row: int
    prompt: int
    node: int
    call: Call | None


class LiveRows:
    """The rows of one batch, kept on the host.

    Callers that hold tensors in row order must reorder them by the `sources` that the methods return: row i is a copy
    of the old row sources[i].

    Args:
        trees: the trees to fill, one per prompt.
        first: what to sample after each prompt.
        eos_ids: tokens that end a rollout.
        matcher: returns the StopMatcher of a stop string.
    """

    def __init__(self, trees: list[Tree], first: Segment, eos_ids: list[int], matcher: Callable[[str], StopMatcher]):
        self.trees, self.matcher, self.eos_ids = trees, matcher, set(eos_ids)
        self.rows: list[Row] = []
        self.enter([Fork(prompt, PROMPT, first) for prompt in range(len(trees))])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def prompts(self) -> set[int]:
        """The prompts with live rows."""
        return {row.prompt for row in self.rows}

    @property
    def forking(self) -> list[tuple[int, Fork]]:
        """(index, fork) of the rows that wait for children."""
        return [(index, row.fork) for index, row in enumerate(self.rows) if row.fork is not None]

    def enter(self, forks: list[Fork]) -> None:
        """Appends one row per fork, which waits for its children."""
        self.rows += [Row(fork.prompt, fork.node, fork=fork) for fork in forks]

    def fork(self) -> tuple[list[int], list[tuple[list[int], tuple[int, ...]]]]:
        """Replaces each row that waits for children by these.

        Returns the sources, and for each fork with distinct first tokens its rows and the tokens already taken (none).
        """
        sources, distinct = list(range(len(self.rows))), []
        for source, fork in self.forking:
            rows = [source, *range(len(sources), len(sources) + fork.segment.count - 1)]
            children = [Row.below(fork, self.trees[fork.prompt], self.matcher) for _ in rows]
            self.rows[source] = children[0]
            self.rows += children[1:]
            sources += [source] * (len(rows) - 1)
            if fork.segment.distinct:
                distinct.append((rows, ()))
        return sources, distinct

    def append(self, token_ids: Iterable[int], logprobs: Iterable[float], entropies: Iterable[float], first: int = 0):
        """Appends one sampled token to each row from row `first` on."""
        for row, *drawn in zip(self.rows[first:], token_ids, logprobs, entropies, strict=True):
            row.append(*drawn)

    def finish(self, policy: Policy) -> list[FinishedRow]:
        """Closes nodes that ended with the last token, asks the policy what follows; returns rows to `drop`."""
        finished = []
        for index, row in enumerate(self.rows):
            ended = row.ended(self.eos_ids)
            if ended is None:
                continue
            tree = self.trees[row.prompt]
            row.close(tree, ended)
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
        return sources

    def split(self, index: int, count: int) -> list[int]:
        """Forks a row before its newest token into `count` nodes, itself included; the others have no token yet.

        Returns the indices of the new rows, which come last; `append` gives them their tokens.
        """
        row = self.rows[index]
        siblings = row.split(self.trees[row.prompt], count)
        self.rows += siblings
        return list(range(len(self.rows) - len(siblings), len(self.rows)))

    def history(self, prompts: list) -> list[list[int]]:
        """Ids (R, T) of each row, prompt included; shorter rows are padded on the left with their first id."""
        paths = []
        for row in self.rows:
            tree = self.trees[row.prompt]
            paths.append([*prompts[row.prompt].ids, *tree.tokens(tree.nodes[row.node].parent), *row.token_ids])
        longest = max(map(len, paths))
        return [path[:1] * (longest - len(path)) + path for path in paths]

    def own(self, name: str, usual: float) -> list[float] | None:
        """The temperature or top_k (`name`) of each row, or None if all rows have the usual value."""
        stated = [getattr(row.segment, name) for row in self.rows]
        values = [usual if value is None else value for value in stated]
        return None if set(values) == {usual} else values
