"""Counts what a serving engine's prefix cache saved, and what it should have saved."""

from __future__ import annotations

import warnings

from trainer.tree import PROMPT, Tree

COUNTS = ("requests", "sent_tokens", "cached_tokens", "computed_tokens", "reusable_tokens", "recomputed_tokens")

LEAST_FOUND = 0.9  # share of the reusable tokens


def cache_sums(engine) -> dict[str, tuple[float, float]]:
    """Name -> (sum, count) over everything that an engine has grown; {} if it does not send requests.

    vllm/sent_tokens, vllm/cached_tokens, vllm/computed_tokens: tokens of requests, as in `PrefixUse`, per process and
    generation; vllm/cached_share: cached / sent; vllm/found_share: cached / reusable.
    """
    totals = getattr(engine, "totals", {})
    if not totals.get("requests"):
        return {}
    sent, cached, computed, reusable = (totals[f"{name}_tokens"] for name in ("sent", "cached", "computed", "reusable"))
    if cached < LEAST_FOUND * reusable:
        warnings.warn(
            f"vLLM's prefix cache held {cached} of {reusable} tokens that earlier requests of the same trees had "
            "computed, so the others were computed again: the cache is too small for a generation; raise "
            "vllm_gpu_memory_utilization, or lower rollout_prompts",
            stacklevel=2,
        )
    return {
        "vllm/sent_tokens": (sent, 1),
        "vllm/cached_tokens": (cached, 1),
        "vllm/computed_tokens": (computed, 1),
        "vllm/cached_share": (cached, sent),
        "vllm/found_share": (cached, reusable),
    }


class PrefixUse:
    """Adds to the counters of one batch of trees.

    Of the tokens sent with a request, `cached_tokens` were found in the cache and `computed_tokens` were computed.
    `reusable_tokens` are those in full blocks that earlier requests of the same tree had computed, which a cache
    without evictions finds; `recomputed_tokens` were computed before and not found, most of them in blocks that were
    not full.

    Args:
        trees: one per prompt, filled while this counts.
        lengths: tokens of each prompt.
        block_size: tokens per block.
        stats: counters, which have the names in `COUNTS`.
    """

    def __init__(self, trees: list[Tree], lengths: list[int], block_size: int, stats: dict[str, int]):
        self.trees, self.lengths, self.block_size, self.stats = trees, lengths, block_size, stats
        self._asked: set[tuple[int, int]] = set()
        self._running: dict[str, tuple[int, int]] = {}  # request -> (tokens sent, of which computed before)

    def sent(self, name: str, prompt: int, node: int, count: int) -> None:
        """A request of `count` tokens, the last ones those of a node."""
        known = self._known(prompt, node)
        self._asked.add((prompt, node))
        self._running[name] = count, known
        self.stats["requests"] += 1
        self.stats["sent_tokens"] += count
        # the logits after the last token need at least that token
        self.stats["reusable_tokens"] += min(known, count - 1) // self.block_size * self.block_size

    def found(self, name: str, cached: int) -> None:
        """What the request found, told with its first token."""
        count, known = self._running.pop(name)
        self.stats["cached_tokens"] += cached
        self.stats["computed_tokens"] += count - cached
        self.stats["recomputed_tokens"] += max(known - cached, 0)

    def _known(self, prompt: int, node: int) -> int:
        """How many tokens of the path down to a node were computed for earlier requests."""
        if node == PROMPT:
            return self.lengths[prompt] if (prompt, PROMPT) in self._asked else 0
        tree = self.trees[prompt]
        path = self.lengths[prompt] + len(tree.tokens(node))
        if (prompt, node) in self._asked:
            return path
        if tree.nodes[node].sampled:
            return path - 1  # the last token was sampled and not fed
        return self._known(prompt, tree.nodes[node].parent)
