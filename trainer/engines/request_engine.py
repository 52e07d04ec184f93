"""Grows rollout trees on a serving engine such as vLLM, whose prefix cache keeps what rows share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from trainer.engines import prefix_use
from trainer.engines.calls import Calls
from trainer.engines.places import Places
from trainer.engines.request_growth import RequestGrowth
from trainer.engines.requests import Requests
from trainer.engines.sampling import Sampling
from trainer.engines.stop_strings import stop_matcher
from trainer.engines.tree_engine import TreeEngine
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch
from trainer.tree import Tree


class RequestEngine(TreeEngine):
    """The trees of `TransformersEngine`, by requests; arguments that are not listed are those of `TreeEngine`.

    Args:
        requests: the serving engine, with the weights to sample from.
        grown: called with the prompts, trees and policy of each `grow`.

    Attributes:
        stats: counts of the last `grow`, as in `TransformersEngine` (steps include those of prefills), and those of
            `PrefixUse`.
        totals: their sums over all calls.
    """

    counts = ("prompt_tokens", "generated_tokens", "observation_tokens", "steps", "calls", "forks", *prefix_use.COUNTS)
    names = map(str, itertools.count())  # of the requests of this process

    def __init__(
        self,
        requests: Requests,
        tokenizer,
        sampling: Sampling,
        eos_ids: list[int],
        max_prompts: int | None = None,
        max_calls: int = 16,
        progress: Callable[[int], None] | None = None,
        grown: Callable[[list, list[Tree], Policy], None] | None = None,
    ):
        super().__init__(tokenizer, sampling, eos_ids, max_prompts, max_calls, progress)
        self.requests, self.grown, self.totals = requests, grown, dict.fromkeys(self.counts, 0)

    def grow(self, prompts: list, policy: Policy, prompt_ids: list[str]) -> list[Tree]:
        """One tree per prompt, as `TransformersEngine.grow`.

        Draws one number from torch's default generator. A tree is a function of it, of the place of its prompt, and of
        what its policy and tools answer.
        """
        trees = self._grow(prompts, policy, prompt_ids, Places())
        self._add_to_totals()
        if self.grown is not None:
            self.grown(prompts, trees, policy)
        return trees

    def extend(self, branches: list[tuple[Tree, Branch]]) -> None:
        """Samples below nodes of trees of the last `grow`, as `TransformersEngine.extend`."""
        super().extend(branches)
        self._add_to_totals()

    def _add_to_totals(self) -> None:
        for name, count in self.stats.items():
            self.totals[name] += count

    def _grow_together(
        self, numbers: list[int], prompts: list, trees: list[Tree], policy: Policy, places: Places
    ) -> RequestGrowth:
        matcher = partial(stop_matcher, self.tokenizer, vocab_size=self.requests.vocab_size)
        with Calls(self.max_calls, self.eos_ids[0]) as calls:
            growth = RequestGrowth(
                self.requests,
                calls,
                places,
                matcher,
                self.eos_ids,
                self.sampling,
                policy,
                prompts,
                trees,
                numbers,
                self.stats,
                self.names,
                self.progress,
            )
            growth.run()
        self.stats["prompt_tokens"] += sum(len(prompt.ids) for prompt in prompts)
        return growth
