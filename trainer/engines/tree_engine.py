"""What all engines do around the growth of one batch of trees: unreadable prompts, batches, further branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from trainer.engines.sampling import Sampling
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch
from trainer.tree import PROMPT, Node, Tree


class TreeEngine:
    """The base of the engines; a subclass grows one batch.

    Args:
        tokenizer: decodes segments to find stop strings.
        sampling: settings of the sampler; a model's generation_config is ignored.
        eos_ids: tokens that end a rollout; they are kept in the node.
        max_prompts: how many prompts are grown together at most; None: all.
        max_calls: how many calls of a policy run at the same time at most.
        progress: called after each step with the number of tokens sampled so far in this `grow`.

    Attributes:
        stats: name in `counts` -> count of the last `grow` or `extend`.
    """

    counts: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        tokenizer,
        sampling: Sampling,
        eos_ids: list[int],
        max_prompts: int | None,
        max_calls: int,
        progress: Callable[[int], None] | None,
    ):
        self.tokenizer, self.sampling, self.eos_ids = tokenizer, sampling, list(eos_ids)
        self.max_prompts, self.max_calls, self.progress = max_prompts, max_calls, progress
        self.stats = dict.fromkeys(self.counts, 0)
        self._kept: list[Any] = []  # growths of the last `grow`, if its policy extends trees

    def _grow(self, prompts: list, policy: Policy, prompt_ids: list[str], shared: Any) -> list[Tree]:
        """One tree per prompt; the tree of a prompt that is None is one `failed` node. `shared`: by all batches."""
        assert len(prompts) == len(prompt_ids), f"{len(prompts)} prompts, {len(prompt_ids)} names"
        self.stats, self._kept = dict.fromkeys(self.counts, 0), []
        trees = [Tree(prompt_id) for prompt_id in prompt_ids]
        for prompt, tree in zip(prompts, trees, strict=True):
            if prompt is None:
                tree.add(Node(PROMPT, policy.start().kind, self.eos_ids[:1], sampled=False, status="failed"))
        readable = [number for number, prompt in enumerate(prompts) if prompt is not None]
        size = self.max_prompts or max(len(readable), 1)
        for start in range(0, len(readable), size):
            numbers = readable[start : start + size]
            own = ([values[number] for number in numbers] for values in (prompts, trees))
            growth = self._grow_together(numbers, *own, policy, shared)
            if policy.extends:
                self._kept.append(growth)
        return trees

    def _grow_together(self, numbers: list[int], prompts: list, trees: list[Tree], policy: Policy, shared: Any) -> Any:
        """Grows the trees of one batch; returns its growth, with `trees` and `extend(branches, stats)`.

        Args:
            numbers: of the prompts in the call of `grow`.
        """
        raise NotImplementedError

    def extend(self, branches: list[tuple[Tree, Branch]]) -> None:
        """Samples below nodes of trees of the last `grow`, whose policy `extends` them; then releases what it kept."""
        self.stats, kept, self._kept = dict.fromkeys(self.counts, 0), self._kept, []
        for growth in kept:
            place = {id(tree): prompt for prompt, tree in enumerate(growth.trees)}
            own = [(place[id(tree)], branch) for tree, branch in branches if id(tree) in place]
            if own:
                growth.extend(own, self.stats)
