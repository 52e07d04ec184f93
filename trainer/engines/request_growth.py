"""Grows one batch of trees on a serving engine: one request per row, added as soon as its parent has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from trainer.engines.calls import Calls
from trainer.engines.places import Places
from trainer.engines.prefix_use import PrefixUse
from trainer.engines.requests import Draw, FirstToken, Request, Requests
from trainer.engines.row import Fork, Row, add_observation
from trainer.engines.sampling import Sampling, refuse_nan
from trainer.engines.stop_strings import StopMatcher
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Segment
from trainer.tree import PROMPT, Tree


class RequestGrowth:
    """Adds, ends, forks and resumes the requests of one batch.

    A row that forks before its newest token goes on as the first child; its siblings are requests of their own, whose
    first token is drawn from the same distribution.

    Args:
        requests: the serving engine.
        calls, places: created for this batch.
        matcher: returns the StopMatcher of a stop string.
        eos_ids: tokens that end a rollout; the serving engine ends requests with them too.
        sampling: what a segment does not state itself.
        policy: decides where to fork.
        prompts, trees: one tree per EncodedPrompt.
        numbers: of the prompts, which their seeds depend on.
        stats: the engine's counters, incremented here.
        names: gives each request its name.
        progress: called after each step with the tokens sampled so far.
    """

    def __init__(
        self,
        requests: Requests,
        calls: Calls,
        places: Places,
        matcher: Callable[[str], StopMatcher],
        eos_ids: list[int],
        sampling: Sampling,
        policy: Policy,
        prompts: list,
        trees: list[Tree],
        numbers: list[int],
        stats: dict[str, int],
        names: Iterator[str],
        progress: Callable[[int], None] | None,
    ):
        self.requests, self.calls, self.places, self.names = requests, calls, places, names
        self.matcher, self.eos_ids, self.sampling, self.policy = matcher, set(eos_ids), sampling, policy
        self.prompts, self.trees, self.numbers = prompts, trees, numbers
        self.stats, self.progress = stats, progress
        self.prefix_use = PrefixUse(trees, [len(prompt.ids) for prompt in prompts], requests.block_size, stats)
        self.rows: dict[str, Row] = {}
        self.siblings: set[str] = set()  # rows whose first token belongs to a fork that the policy has decided on
        self.steps = 0

    def run(self) -> None:
        """Grows until no request runs, no call is pending and the policy wants no further branches."""
        self._run([Fork(prompt, PROMPT, self.policy.start()) for prompt in range(len(self.trees))])

    def extend(self, branches: list[tuple[int, Branch]], stats: dict[str, int]) -> None:
        """Grows (prompt, branch) pairs, once `run` has ended, and counts them in `stats`."""
        self.stats = self.prefix_use.stats = stats
        self.stats["forks"] += len(branches)
        self._run([Fork(prompt, branch.node, branch.segment) for prompt, branch in branches])

    def _run(self, forks: list[Fork]) -> None:
        try:
            for fork in forks:
                self._fork(fork)
            while True:
                self._observe()
                if not self.rows:
                    break
                fresh = self._step()
                if self.policy.splits and fresh:
                    self._split([name for name in fresh if name not in self.siblings])
                    self.siblings.difference_update(fresh)
                self._finish(fresh)
                self.steps += 1
        finally:
            self.requests.abort(list(self.rows))

    def _fork(self, fork: Fork) -> None:
        tree, segment = self.trees[fork.prompt], fork.segment
        race = self.places.race(self.numbers[fork.prompt], tree, fork.node) if segment.distinct else None
        for rank in range(segment.count):
            row = Row.below(fork, tree, self.matcher)
            self._add(row, None if race is None else FirstToken(race, rank))

    def _add(self, row: Row, first: FirstToken | None) -> str:
        """Requests the continuation of a row that has no token yet."""
        tree, own, usual = self.trees[row.prompt], row.segment, self.sampling
        parent = tree.nodes[row.node].parent
        ids, media = self._input(row.prompt, parent)
        draw = Draw(
            seed=self.places.seed(self.numbers[row.prompt], tree, row.node),
            temperature=usual.temperature if own.temperature is None else own.temperature,
            top_k=usual.top_k if own.top_k is None else own.top_k,
            top_p=usual.top_p,
            min_p=usual.min_p,
            repetition_penalty=usual.repetition_penalty,
            first=first,
        )
        name = next(self.names)
        self.rows[name] = row
        self.prefix_use.sent(name, row.prompt, parent, len(ids))
        self.requests.add(Request(name, ids, media, row.left, draw))
        return name

    def _input(self, prompt: int, node: int) -> tuple[list[int], list]:
        """The ids down to a node, and where the prompt's and the observations' media stand in them."""
        encoded, tree = self.prompts[prompt], self.trees[prompt]
        ids, media = list(encoded.ids), [(0, encoded)] if encoded.media else []
        for above in (tree.nodes[i] for i in tree.path(node)):
            if above.media is not None and above.media.media:
                media.append((len(ids), above.media))
            ids += above.token_ids
        return ids, media

    def _step(self) -> list[str]:
        """Runs one step; returns the rows that sampled a token."""
        sampled = [one for one in self.requests.step() if one.name in self.rows]
        refuse_nan(np.array([one.logprob for one in sampled]))
        for one in sampled:
            self.rows[one.name].append(one.token_id, one.logprob, one.entropy)
            if one.cached is not None:
                self.prefix_use.found(one.name, one.cached)
        self.stats["steps"] += 1
        self.stats["generated_tokens"] += len(sampled)
        if self.progress is not None:
            self.progress(self.stats["generated_tokens"])
        return [one.name for one in sampled]

    def _split(self, fresh: list[str]) -> None:
        """Asks the policy about each candidate row, highest entropy first."""
        rows = [self.rows[name] for name in fresh]
        if not rows:
            return
        entropies, logprobs = (
            np.array([values[-1] for values in column], dtype=np.float32)
            for column in ([row.entropies for row in rows], [row.logprobs for row in rows])
        )
        wanted = self.policy.candidates(entropies, logprobs).nonzero()[0].tolist()
        for row in sorted((rows[index] for index in wanted), key=lambda row: -row.entropies[-1]):
            tree = self.trees[row.prompt]
            fork = self.policy.split(tree, row.node, row.token_ids, row.entropies[-1], row.logprobs[-1])
            if fork is None:
                continue
            self.stats["forks"] += 1
            siblings = row.split(tree, fork.count)
            parent = tree.nodes[row.node].parent
            race = self.places.race(self.numbers[row.prompt], tree, parent) if fork.distinct else None
            taken = (row.token_ids[-1],)
            for rank, sibling in enumerate(siblings):
                first = None if race is None else FirstToken(race, rank, taken)
                self.siblings.add(self._add(sibling, first))

    def _finish(self, fresh: list[str]) -> None:
        """Handles the nodes that ended with the newest token: they get children, make a call, or are leaves."""
        finished = []
        for name in fresh:
            row = self.rows[name]
            ended = row.ended(self.eos_ids)
            if ended is None:
                continue
            del self.rows[name]
            if ended == "stop":
                self.requests.abort([name])
            tree = self.trees[row.prompt]
            row.close(tree, ended)
            finished.append(row.prompt)
            self._follow(row.prompt, row.node, self.policy.next(tree, row.node, ended))
        self._expand(set(finished))

    def _follow(self, prompt: int, node: int, following: Segment | Call | None) -> None:
        if isinstance(following, Segment):
            self._fork(Fork(prompt, node, following))
        elif isinstance(following, Call):
            self.stats["calls"] += 1
            self.calls.submit(prompt, node, following, self.steps)

    def _observe(self) -> None:
        """Collects tool results; waits for them if nothing else is left to do."""
        while True:
            arrivals = self.calls.arrivals(self.steps, idle=not self.rows)
            for arrival in arrivals:
                tree = self.trees[arrival.prompt]
                node = add_observation(tree, arrival)
                self.stats["observation_tokens"] += len(tree.nodes[node].token_ids)
                if tree.nodes[node].status != "failed":
                    self._follow(arrival.prompt, node, self.policy.next(tree, node, "observed"))
            self._expand({arrival.prompt for arrival in arrivals})
            if self.rows or not self.calls:
                return

    def _expand(self, prompts: set[int]) -> None:
        """Asks the policy for branches of trees with nothing running or pending."""
        if not self.policy.expands:
            return
        busy = {row.prompt for row in self.rows.values()} | self.calls.prompts
        for prompt in sorted(prompts - busy):
            branches = self.policy.expand(self.trees[prompt])
            self.stats["forks"] += len(branches)
            for branch in branches:
                self._fork(Fork(prompt, branch.node, branch.segment))
