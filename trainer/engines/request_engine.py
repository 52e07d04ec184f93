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
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch
from trainer.tree import PROMPT, Node, Tree

COUNTS = ("prompt_tokens", "generated_tokens", "observation_tokens", "steps", "calls", "forks", *prefix_use.COUNTS)


class RequestEngine:
    """The trees of `TransformersEngine`, by requests.

    Args:
        requests: the serving engine, with the weights to sample from.
        tokenizer: decodes segments to find stop strings.
        sampling: settings of the sampler.
        eos_ids: tokens that end a rollout; they are kept in the node.
        max_prompts: how many prompts are grown together at most; None: all.
        max_calls: how many calls of a policy run at the same time at most.
        progress: called after each step with the number of tokens sampled so far in this `grow`.
        grown: called with the prompts, trees and policy of each `grow`.

    Attributes:
        stats: counts of the last `grow`, as in `TransformersEngine` (steps include those of prefills), and those of
            `PrefixUse`.
        totals: their sums over all calls.
    """

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
        self.requests, self.tokenizer, self.sampling, self.eos_ids = requests, tokenizer, sampling, list(eos_ids)
        self.max_prompts, self.max_calls, self.progress, self.grown = max_prompts, max_calls, progress, grown
        self.stats, self.totals = dict.fromkeys(COUNTS, 0), dict.fromkeys(COUNTS, 0)
        self._kept: list[RequestGrowth] = []  # of the last `grow`, if its policy extends trees

    def grow(self, prompts: list, policy: Policy, prompt_ids: list[str]) -> list[Tree]:
        """One tree per prompt, as `TransformersEngine.grow`.

        Draws one number from torch's default generator. A tree is a function of it, of the place of its prompt, and of
        what its policy and tools answer.
        """
        self.stats, self._kept = dict.fromkeys(COUNTS, 0), []
        trees = [Tree(prompt_id) for prompt_id in prompt_ids]
        readable = [number for number, prompt in enumerate(prompts) if prompt is not None]
        for number in set(range(len(prompts))) - set(readable):
            trees[number].add(Node(PROMPT, policy.start().kind, self.eos_ids[:1], sampled=False, status="failed"))
        places, size = Places(), self.max_prompts or max(len(readable), 1)
        for start in range(0, len(readable), size):
            self._grow_together(readable[start : start + size], prompts, trees, policy, places)
        self._add_to_totals()
        if self.grown is not None:
            self.grown(prompts, trees, policy)
        return trees

    def extend(self, branches: list[tuple[Tree, Branch]]) -> None:
        """Samples below nodes of trees of the last `grow`, as `TransformersEngine.extend`."""
        self.stats, kept, self._kept = dict.fromkeys(COUNTS, 0), self._kept, []
        for growth in kept:
            place = {id(tree): prompt for prompt, tree in enumerate(growth.trees)}
            own = [(place[id(tree)], branch) for tree, branch in branches if id(tree) in place]
            if own:
                growth.extend(own, self.stats)
        self._add_to_totals()

    def _add_to_totals(self) -> None:
        for name, count in self.stats.items():
            self.totals[name] += count

    def _grow_together(self, numbers: list[int], prompts: list, trees: list[Tree], policy: Policy, places: Places):
        matcher = partial(stop_matcher, self.tokenizer, vocab_size=self.requests.vocab_size)
        own_prompts, own_trees = ([values[number] for number in numbers] for values in (prompts, trees))
        with Calls(self.max_calls, self.eos_ids[0]) as calls:
            growth = RequestGrowth(
                self.requests,
                calls,
                places,
                matcher,
                self.eos_ids,
                self.sampling,
                policy,
                own_prompts,
                own_trees,
                numbers,
                self.stats,
                self.names,
                self.progress,
            )
            growth.run()
        if policy.extends:
            self._kept.append(growth)
        self.stats["prompt_tokens"] += sum(len(prompt.ids) for prompt in own_prompts)
