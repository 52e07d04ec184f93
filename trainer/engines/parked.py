"""Keys and values of rows that are not live: of rows that wait for a call, and of points to branch from."""

# n tokens, F features of a slot's keys and values, V vocabulary

from __future__ import annotations

import torch
from torch import Tensor

from trainer.engines.batch_forward import BatchForward, PendingTokens
from trainer.tree import PROMPT, Node, Tree


class Parked:
    """Keys and values of the trees of a batch, stored once per token however many rows share it.

    In addition to the live rows, a tree takes as much memory as one row with all of its tokens; `free` releases it. For
    a model of 36 layers with 2 key-value heads of 128 in bfloat16 that is 36 KiB per token; the logits kept at the end
    of a node are another 300 KB for a vocabulary of 150 k.

    Args:
        forward: holds the live rows.
        trees: one per prompt of `forward`.
    """

    def __init__(self, forward: BatchForward, trees: list[Tree]):
        self.forward, self.prompts, self.trees = forward, forward.prompts, trees
        # By prompt, then by node (PROMPT among them): the states (n, F) of its first tokens, in pieces.
        self._states: list[dict[int, list[Tensor]]] = [{} for _ in trees]
        self._borders: list[dict[int, Tensor]] = [{} for _ in trees]

    def keep(self, row: int, prompt: int, node: int) -> None:
        """Keeps the states of live row `row`: everything down to `node`, without its last token, which was not fed."""
        states, end = self._states[prompt], self.forward.length
        count = self._count(prompt, node) - 1
        while self._held(prompt, node) != count:
            states[node] = [self.forward.take(row, end - count, end)]
            end -= count
            if node == PROMPT:
                assert end == self.forward.pads[row], "a row holds tokens other than those of its path"
                return
            node = self.trees[prompt].nodes[node].parent
            count = self._count(prompt, node)

    def keep_border(self, prompt: int, node: int, logits: Tensor) -> None:
        """Keeps the logits (V,) after the last token of a node."""
        self._borders[prompt][node] = logits.clone()

    def border(self, prompt: int, node: int) -> Tensor | None:
        """The logits (V,) after a node's last token, or None if they were not kept."""
        return self._borders[prompt].get(node)

    def pending(self, prompt: int, node: int) -> PendingTokens:
        """The tokens down to `node` whose states are not stored yet; if all are, the last token again."""
        nodes = self._nodes(prompt, node)
        states, ids = self.row(prompt, node), [token for below in nodes for token in below.token_ids]
        above = len(self.prompts[prompt].ids)
        held = min(len(states) - above, len(ids) - 1)
        assert held >= 0, "branches at the end of a prompt use its kept logits"
        media, depth = [], 0
        for below in nodes:
            if below.media is not None and depth >= held:
                media.append(below.media)
            depth += len(below.token_ids)
        return PendingTokens(states[: above + held], ids[held:], self._positions(prompt, nodes)[..., held:], media)

    def store(self, prompt: int, node: int, states: Tensor) -> None:
        """Stores the states (m, F) of the tokens that `pending` returned, except those already stored."""
        while missing := self._count(prompt, node) - (self._held(prompt, node) or 0):
            states, new = states.split([len(states) - missing, missing])
            self._states[prompt].setdefault(node, []).append(new)
            node = self.trees[prompt].nodes[node].parent

    def row(self, prompt: int, node: int) -> Tensor:
        """The stored states (n, F) of the prompt and the path down to `node`."""
        path = [PROMPT, *self.trees[prompt].path(node)]
        return torch.cat([states for i in path for states in self._states[prompt].get(i, ())])

    def next_position(self, prompt: int, node: int) -> int:
        """The position of the first token after `node`."""
        return self.prompts[prompt].next_position + sum(map(_advance, self._nodes(prompt, node)))

    def free(self, prompt: int) -> None:
        """Releases the states and logits of a tree."""
        self._states[prompt], self._borders[prompt] = {}, {}

    def _nodes(self, prompt: int, node: int) -> list[Node]:
        return [self.trees[prompt].nodes[i] for i in self.trees[prompt].path(node)]

    def _count(self, prompt: int, node: int) -> int:
        return len(self.prompts[prompt].ids if node == PROMPT else self.trees[prompt].nodes[node].token_ids)

    def _held(self, prompt: int, node: int) -> int | None:
        states = self._states[prompt].get(node)
        return None if states is None else sum(map(len, states))

    def _positions(self, prompt: int, nodes: list[Node]) -> Tensor:
        """Positions of the tokens of a path, (n,) or (3, n); an observation with pictures has its own, shifted."""
        start, axes, positions = self.prompts[prompt].next_position, self.forward.axes, []
        for node in nodes:
            own = torch.arange(len(node.token_ids)) if node.media is None else node.media.position_ids
            positions.append((own + start).expand(*axes, -1))
            start += _advance(node)
        return torch.cat(positions, dim=-1)


def _advance(node: Node) -> int:
    """Number of positions a node takes; a picture takes fewer positions than tokens."""
    return len(node.token_ids) if node.media is None else node.media.next_position
