"""A rollout is a tree: nodes that store only the tokens they add, with parent indices.

Row views (one row per leaf, as TRL expects) are derived here and nowhere else: each shared token has one owner, and
credit is spread over tokens in one place (`Tree.spread`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("thought", "answer", "step", "observation", "segment")
STATUSES = ("ok", "length", "unclosed", "failed")
PROMPT = -1


@dataclass
class Node:
    """The tokens that one stretch of generation (or one observation) adds below its parent.

    Args:
        parent: index of the parent node in `Tree.nodes`, or `PROMPT` (-1).
        kind: one of `KINDS`.
        token_ids: the tokens this node adds, as sampled (never decoded and encoded again).
        sampled: True if the policy sampled them; observation tokens are not sampled and never trained on.
        logprobs: log-probability of each token under the distribution it was sampled from, in nats.
        entropies: entropy of that distribution at each token, in nats.
        status: one of `STATUSES`: `length` was cut at its token limit, `unclosed` is a thought that never closed,
            `failed` is a rollout that could not be made (bad media, tool error). A failure is data, not an exception.
        group: which tree of the prompt's forest the node belongs to (in grpo_ma, which thought). None is filled in when
            the node joins a `Tree`: a node takes its parent's group, and the i-th root founds group i.
        media: for an observation with pictures, its `EncodedPrompt`, whose ids are `token_ids` and whose positions
            start at 0; None for text.
        extra: what the policy keeps at a node (an environment, the kind of an error); the engine never reads it.
        reward: what an environment gave for the turn that an observation answers, beside the reward of the completion.
    """

    parent: int
    kind: str
    token_ids: list[int] = field(default_factory=list)
    sampled: bool = True
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    status: str = "ok"
    group: int | None = None
    media: Any = None
    extra: Any = None
    reward: float = 0.0

    @property
    def error(self) -> str | None:
        """The kind of error that a tool left in `extra`, or None."""
        return self.extra.get("error") if isinstance(self.extra, dict) else getattr(self.extra, "error", None)


@dataclass
class Tree:
    """All rollouts of one prompt: strictly a forest, since any number of roots may have `PROMPT` as their parent.

    Parents precede their children in `nodes`.

    >>> tree = Tree("a")
    >>> th = tree.add(Node(PROMPT, "thought", [1, 2]))
    >>> left, right = tree.add(Node(th, "answer", [3])), tree.add(Node(th, "answer", [4, 5]))
    >>> tree.leaves(), tree.tokens(right), tree.spread({th: 0.5, right: -1.0}, right)
    ([1, 2], [1, 2, 4, 5], [0.5, 0.5, -1.0, -1.0])
    """

    prompt_id: str
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self):
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> int:
        """Appends a node below an existing parent and returns its index."""
        assert PROMPT <= node.parent < len(self.nodes), f"parent {node.parent} of {len(self.nodes)} nodes"
        assert node.kind in KINDS and node.status in STATUSES, (node.kind, node.status)
        if node.group is None:
            founded = sum(other.parent == PROMPT for other in self.nodes)
            node.group = founded if node.parent == PROMPT else self.nodes[node.parent].group
        self.nodes.append(node)
        return len(self.nodes) - 1

    def leaves(self) -> list[int]:
        """Indices of the nodes without children, in order of creation."""
        parents = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in parents]

    def path(self, leaf: int) -> list[int]:
        """Node indices from the root down to `leaf`."""
        indices = []
        while leaf != PROMPT:
            indices.append(leaf)
            leaf = self.nodes[leaf].parent
        return indices[::-1]

    def tokens(self, leaf: int) -> list[int]:
        """Token ids of the completion that ends at `leaf`."""
        return [token for i in self.path(leaf) for token in self.nodes[i].token_ids]

    def spread(self, values: dict[int, float] | Sequence[float], leaf: int) -> list[float]:
        """One value per completion token of `leaf`'s row: the value of the node that owns the token.

        `values` maps node indices to values. Raises KeyError or IndexError if a node on the path has no value.
        """
        return [values[i] for i in self.path(leaf) for _ in self.nodes[i].token_ids]

    def turn_rewards(self, leaf: int) -> list[float]:
        """The reward of each turn ("step") on the path to `leaf`: that of the observation after it, 0 without one."""
        path = self.path(leaf)
        given = {self.nodes[i].parent: self.nodes[i].reward for i in path if self.nodes[i].kind == "observation"}
        return [given.get(i, 0.0) for i in path if self.nodes[i].kind == "step"]

    def unique_tokens(self) -> int:
        """Number of tokens in the tree, without the prompt; shared tokens count once."""
        return sum(len(node.token_ids) for node in self.nodes)
