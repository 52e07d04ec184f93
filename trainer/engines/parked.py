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
        # The states (S,) of layers that have one, each with the number of a path's tokens that it was taken after.
        self._recurrent: list[dict[int, tuple[int, Tensor]]] = [{} for _ in trees]

    def keep(self, row: int, prompt: int, node: int, unfed: int = 1) -> None:
        """Keeps the states of live row `row`: everything down to `node`, without its last `unfed` (0 or 1) tokens."""
        states, end = self._states[prompt], self.forward.length
        self._keep_state(row, prompt, node, self._depth(prompt, node) - unfed)
        count = self._count(prompt, node) - unfed
        while self._held(prompt, node) != count:
            states[node] = [self.forward.take(row, end - count, end)]
            end -= count
            if node == PROMPT:
                assert end == self.forward.pads[row], "a row holds tokens other than those of its path"
                return
            node = self.trees[prompt].nodes[node].parent
            count = self._count(prompt, node)

    def keep_border(self, row: int, prompt: int, node: int, logits: Tensor) -> None:
        """Keeps the logits (V,) after the last token of a node, which live row `row` was fed."""
        self._borders[prompt][node] = logits.clone()
        self._keep_state(row, prompt, node, self._depth(prompt, node))

    def border(self, prompt: int, node: int) -> Tensor | None:
        """The logits (V,) after a node's last token, or None if they were not kept."""
        return self._borders[prompt].get(node)

    def no_logits(self) -> Tensor:
        """Logits (0, V) in the form of the kept ones, of which there is at least one."""
        return next(logits for borders in self._borders for logits in borders.values())[None][:0]

    def pending(self, prompt: int, node: int) -> PendingTokens:
        """The tokens down to `node` whose states are not stored yet; if all are, the last token again.

        A model with recurrent layers goes on from the last place on the path whose state was kept, and is fed the
        tokens behind it again; without any, the whole path.
        """
        nodes, above = self._nodes(prompt, node), self.prompts[prompt]
        states, ids = self.row(prompt, node), [token for below in nodes for token in below.token_ids]
        held, recurrent = min(len(states), len(above.ids) + len(ids) - 1), None
        if self.forward.recurrent:
            held, recurrent = self._last_state(prompt, node, held)
        assert held >= len(above.ids) or self.forward.recurrent, "branches at the end of a prompt use its kept logits"
        media, depth = [above] if held < len(above.ids) and above.media else [], len(above.ids)
        for below in nodes:
            if below.media is not None and depth >= held:
                media.append(below.media)
            depth += len(below.token_ids)
        positions = torch.cat([above.position_ids, self._positions(prompt, nodes)], dim=-1)
        return PendingTokens(states[:held], [*above.ids, *ids][held:], positions[..., held:], media, recurrent)

    def store(self, prompt: int, node: int, states: Tensor, recurrent: Tensor | None) -> None:
        """Stores what `pending` asked for: the states (m, F) that are not stored already, and the state (S,) behind."""
        if recurrent is not None:
            self._recurrent[prompt][node] = (self._depth(prompt, node), recurrent)
        while missing := self._count(prompt, node) - (self._held(prompt, node) or 0):
            states, new = states.split([len(states) - missing, missing])
            self._states[prompt].setdefault(node, []).append(new)
            node = self.trees[prompt].nodes[node].parent

    def row(self, prompt: int, node: int) -> Tensor:
        """The stored states (n, F) of the prompt and the path down to `node`."""
        path = [PROMPT, *self.trees[prompt].path(node)]
        return torch.cat([states for i in path for states in self._states[prompt].get(i, ())])

    def recurrent(self, prompt: int, node: int) -> Tensor | None:
        """The state (S,) after the last token of `node`, None for a model without such layers."""
        if not self.forward.recurrent:
            return None
        depth, state = self._recurrent[prompt][node]
        assert depth == self._depth(prompt, node), "the state is that of an earlier token"
        return state

    def next_position(self, prompt: int, node: int) -> int:
        """The position of the first token after `node`."""
        return self.prompts[prompt].next_position + sum(map(_advance, self._nodes(prompt, node)))

    def free(self, prompt: int) -> None:
        """Releases the states and logits of a tree."""
        self._states[prompt], self._borders[prompt], self._recurrent[prompt] = {}, {}, {}

    def _keep_state(self, row: int, prompt: int, node: int, depth: int) -> None:
        if self.forward.recurrent:
            self._recurrent[prompt][node] = (depth, self.forward.state(row))

    def _last_state(self, prompt: int, node: int, limit: int) -> tuple[int, Tensor | None]:
        """(tokens, state) of the deepest kept state on the path to `node` after at most `limit` tokens."""
        path = [PROMPT, *self.trees[prompt].path(node)]
        kept = [self._recurrent[prompt][i] for i in path if i in self._recurrent[prompt]]
        return max((pair for pair in kept if pair[0] <= limit), key=lambda pair: pair[0], default=(0, None))

    def _depth(self, prompt: int, node: int) -> int:
        """Number of tokens of the prompt and the path down to `node`."""
        return len(self.prompts[prompt].ids) + sum(len(below.token_ids) for below in self._nodes(prompt, node))

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
