"""The base class of branching policies: where a rollout forks, and the hooks that a policy may override."""

from __future__ import annotations

from typing import ClassVar

from trainer.policies.segment import Branch, Call, Segment, Split
from trainer.tree import Tree


class Policy:
    """Where a rollout forks. An engine calls `start` once per prompt and `next` once per finished node.

    A subclass sets `leaves` and overrides `start`; every other hook does nothing unless it is overridden. Trees of
    several prompts grow side by side, so a policy keeps what it remembers per tree.

    Attributes:
        leaves: rows per prompt, when every node ends as planned.
        expands: whether `expand` may return branches; the engine then keeps the keys and values of finished rows.
        splits: whether `split` may fork a growing node; the engine then calls `candidates` at every step.
        extends: whether trees may get `further` leaves after they have been scored; the engine then keeps the keys and
            values of forks until its `extend`.
        forked_by: the score that decides where a growing node forks, one of `RULES` of the entropy policy; None: none.
    """

    leaves: int
    expands: ClassVar[bool] = False
    splits: ClassVar[bool] = False
    extends: bool = False
    forked_by: str | None = None

    def start(self) -> Segment:
        """What to sample right after the prompt."""
        raise NotImplementedError

    def next(self, tree: Tree, node_index: int, ended: str) -> Segment | Call | None:
        """What follows a finished node; None makes it a leaf. May set `tree.nodes[node_index].status`.

        `ended` is how the node ended: "stop" (a stop string came), "eos", "length" (cut at its limit), or "observed"
        (it is an observation that did not fail).
        """
        return None

    def expand(self, tree: Tree) -> list[Branch]:
        """Branches off a tree whose rows have all ended; called again when these have ended, until it returns none.

        A branch at the end of the prompt or after a node that a segment followed costs no forward pass for what is
        above it. Branches are independent of each other: two at the same node may begin alike.
        """
        return []

    def further(self, tree: Tree, count: int) -> list[Branch]:
        """Branches with `count` more leaves in all for a tree that is complete; empty if it can have none."""
        return []

    def candidates(self, entropies, logprobs):
        """The live rows for which to call `split` before their newest token, a bool array (R,).

        Args:
            entropies, logprobs: numpy arrays (R,), float32.

        Entropies and log-probabilities are those of the distribution the token was drawn from, in nats.
        """
        return entropies < float("-inf")  # none

    def split(self, tree: Tree, node_index: int, token_ids: list[int], entropy: float, logprob: float) -> Split | None:
        """Whether a growing node forks before its newest token (`token_ids[-1]`), a candidate.

        Within a step the rows of higher entropy are asked first. At a fork the node ends before the token (unless it
        has no other), the token begins the first child, and the other children draw their first token from the same
        distribution; each child may have as many tokens as the node had left.
        """
        return None

    def metrics(self, trees: list[Tree]) -> dict[str, tuple[float, float]]:
        """Name -> (sum, count) over the trees of one process; logged as sum / count over all processes."""
        return {}

    def reward_sums(self, trees: list[Tree], rewards: list[dict[int, float]]) -> dict[str, tuple[float, float]]:
        """As `metrics`, from the rewards of each tree's leaves (leaf node -> reward, NaN where it abstains)."""
        return {}

    def remember(self, metrics: dict[str, float]) -> None:
        """Takes the logged metrics of a generation, the same on all processes, before the next one grows."""

    def report(self, tree: Tree, leaf: int) -> dict:
        """Further columns of an evaluated completion."""
        return {}
