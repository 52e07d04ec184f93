"""Seeds of requests: a function of one number per `grow` and of the place in the tree, never of the time."""

from __future__ import annotations

import hashlib

import torch

from trainer.tree import PROMPT, Tree


class Places:
    """The seeds of one `grow`; one draw from torch's default generator decides them all."""

    def __init__(self):
        self.base = int(torch.randint(2**62, ())).to_bytes(8, "big")

    def seed(self, prompt: int, tree: Tree, node: int) -> int:
        """Of the request that grows a node."""
        return self._hash(b"node", prompt, _place(tree, node))

    def race(self, prompt: int, tree: Tree, parent: int) -> int:
        """Of the next race between children of a node (see `FirstToken`)."""
        children = sum(node.parent == parent for node in tree.nodes)
        return self._hash(b"race", prompt, [*_place(tree, parent), children])

    def _hash(self, kind: bytes, prompt: int, place: list[int]) -> int:
        text = self.base + kind + ",".join(map(str, [prompt, *place])).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _place(tree: Tree, node: int) -> list[int]:
    """Of each node on the path, the lowest first, how many of its parent's children are older."""
    place = []
    while node != PROMPT:
        parent = tree.nodes[node].parent
        place.append(sum(other.parent == parent for other in tree.nodes[:node]))
        node = parent
    return place
