"""Grows one batch of trees from the prompts to the leaves."""

# R live rows, V vocabulary

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.engines.batch_forward import BatchForward
from trainer.engines.calls import Arrival, Calls
from trainer.engines.host_copies import upload
from trainer.engines.live_rows import LiveRows
from trainer.engines.parked import Parked
from trainer.engines.row import Fork, add_observation
from trainer.engines.sampling import Sampler, Sampling, read
from trainer.policies.policy import Policy
from trainer.policies.segment import Branch, Call, Segment
from trainer.tree import Tree


class Growth:
    """Samples, ends, forks, parks and resumes the rows of one batch.

    Args:
        forward, rows, calls, sampler: the components, created for this batch.
        policy: decides where to fork.
        trees: one per prompt.
        stats: the engine's counters, incremented here.
        progress: called after each step with the tokens sampled so far.
    """

    def __init__(
        self,
        forward: BatchForward,
        rows: LiveRows,
        calls: Calls,
        sampler: Sampler,
        policy: Policy,
        trees: list[Tree],
        stats: dict[str, int],
        progress: Callable[[int], None] | None,
    ):
        self.forward, self.rows, self.calls, self.sampler = forward, rows, calls, sampler
        self.policy, self.trees, self.stats, self.progress = policy, trees, stats, progress
        self.parked = Parked(forward, trees)
        self.expands, self.splits, self.extends = policy.expands, policy.splits, policy.extends
        self.entering: list[Fork] = []
        self.steps = 0

    def run(self) -> None:
        """Grows until no row is live, no call is pending and the policy wants no further branches."""
        self._run(self.forward.prefill())

    def extend(self, branches: list[tuple[int, Branch]], stats: dict[str, int]) -> None:
        """Grows (prompt, branch) pairs below nodes that a segment followed, after `run`; counted in `stats`."""
        self.stats = stats
        self.entering = [Fork(prompt, branch.node, branch.segment) for prompt, branch in branches]
        self.stats["forks"] += len(branches)
        self._run(self.parked.no_logits())

    def _run(self, logits: Tensor) -> None:
        while True:
            logits = self._enter(logits)
            if not self.rows:
                break
            logits, distinct = self._fork(logits)
            tokens = self._finish(self._sample(logits, distinct))
            if self.rows:
                logits = self.forward.step(tokens)
                self.stats["steps"] += 1
            self.steps += 1
        if self.extends:
            self.forward.cache.release()  # what `extend` needs is parked

    def _fork(self, logits: Tensor) -> tuple[Tensor, list]:
        """Replaces forking rows by their children; returns logits (R, V) and the rows that draw distinct tokens."""
        forking = self.rows.forking
        if not forking:
            return logits, []
        for index, fork in forking if self.expands or self.extends else ():
            self.parked.keep_border(index, fork.prompt, fork.node, logits[index])
            if self.extends:
                self.parked.keep(index, fork.prompt, fork.node, unfed=0)
        sources, distinct = self.rows.fork()
        return logits[self.forward.select(sources)], distinct

    def _sample(self, logits: Tensor, distinct: list) -> Tensor:
        """Samples one token per row, and forks before it where the policy decides so; returns the tokens (R,).

        The host reads once: tokens, log-probabilities and entropies together.
        """
        usual = self.sampler.sampling
        drawn_from = (logits, self._history(usual))
        own = {name: self.rows.own(name, getattr(usual, name)) for name in ("temperature", "top_k")}
        drawn = self.sampler(*drawn_from, **own, distinct=distinct)
        token_ids, logprobs, entropies = read(*drawn)
        self.rows.append(token_ids, logprobs.tolist(), entropies.tolist())
        tokens = drawn[0]
        if self.splits:
            wanted = self.policy.candidates(entropies, logprobs).nonzero()[0].tolist()
            tokens = self._split(wanted, tokens, drawn_from, own)
        self.stats["generated_tokens"] += len(self.rows)
        if self.progress is not None:
            self.progress(self.stats["generated_tokens"])
        return tokens

    def _history(self, sampling: Sampling) -> Tensor | None:
        """Ids (R, T) that the repetition penalty applies to, None without a penalty."""
        if sampling.repetition_penalty == 1:
            return None
        rows = self.rows.history(self.forward.prompts)
        return upload([token for row in rows for token in row], self.forward.device).view(len(rows), -1)

    def _split(self, wanted: list[int], tokens: Tensor, drawn_from: tuple, own: dict[str, list | None]) -> Tensor:
        """Asks the policy about each candidate row, highest entropy first; returns the newest tokens of all rows.

        Siblings draw from the same distribution as the token before which the row forks.
        """
        sources, siblings = list(range(len(self.rows))), []
        for index in sorted(wanted, key=lambda index: -self.rows.rows[index].entropies[-1]):
            row = self.rows.rows[index]
            entropy, logprob = row.entropies[-1], row.logprobs[-1]
            fork = self.policy.split(self.trees[row.prompt], row.node, row.token_ids, entropy, logprob)
            if fork is None:
                continue
            self.stats["forks"] += 1
            count = len(self.rows.split(index, fork.count))
            sources += [index] * count
            distinct = [(list(range(count)), [row.token_ids[-1]])] if fork.distinct else []
            of_row = [None if values is None else values[index : index + 1].expand(count, -1) for values in drawn_from]
            row_own = {name: None if values is None else [values[index]] * count for name, values in own.items()}
            siblings.append(self.sampler(*of_row, **row_own, distinct=distinct))
        if not siblings:
            return tokens
        drawn = [torch.cat(values) for values in zip(*siblings, strict=True)]
        token_ids, logprobs, entropies = read(*drawn)
        self.rows.append(token_ids, logprobs.tolist(), entropies.tolist(), first=len(tokens))
        self.forward.select(sources)
        return torch.cat([tokens, drawn[0]])

    def _finish(self, tokens: Tensor) -> Tensor:
        """Handles the nodes that ended with the last token: they get children, make a call, or are leaves.

        Returns the last tokens of the rows that stay.
        """
        finished = self.rows.finish(self.policy)
        if not finished:
            return tokens
        for row in finished:
            if row.call is not None or self.expands:
                self.parked.keep(row.row, row.prompt, row.node)
            if row.call is not None:
                self._call(row.prompt, row.node, row.call)
        tokens = tokens[self.forward.select(self.rows.drop(finished))]
        self._expand_or_free({row.prompt for row in finished})
        return tokens

    def _call(self, prompt: int, node: int, call: Call) -> None:
        self.stats["calls"] += 1
        self.calls.submit(prompt, node, call, self.steps)

    def _expand_or_free(self, prompts: set[int]) -> None:
        """Asks the policy for branches of trees with nothing live, pending or entering; frees the finished ones."""
        busy = self.rows.prompts | self.calls.prompts | {fork.prompt for fork in self.entering}
        for prompt in sorted(prompts - busy):
            branches = self.policy.expand(self.trees[prompt]) if self.expands else []
            if branches:
                self.stats["forks"] += len(branches)
                self.entering += [Fork(prompt, branch.node, branch.segment) for branch in branches]
            elif not self.extends:
                self.parked.free(prompt)

    def _enter(self, logits: Tensor) -> Tensor:
        """Collects tool results and adds the rows that resume or branch; returns the logits (R, V) of all live rows."""
        while True:
            arrivals = self.calls.arrivals(self.steps, idle=not (self.rows or self.entering))
            for arrival in arrivals:
                self._observe(arrival)
            self._expand_or_free({arrival.prompt for arrival in arrivals})
            if self.rows or self.entering or not self.calls:
                break
        forks, self.entering = self.entering, []
        if not forks:
            return logits
        after = self._feed(forks)
        self.forward.enter(
            [self.parked.row(fork.prompt, fork.node) for fork in forks],
            [self.parked.next_position(fork.prompt, fork.node) for fork in forks],
            [self.parked.recurrent(fork.prompt, fork.node) for fork in forks],
        )
        self.rows.enter(forks)
        return torch.cat([logits[: len(self.rows) - len(forks)], torch.stack(after)])

    def _observe(self, arrival: Arrival) -> None:
        """Adds a call's result as an observation node and asks the policy what follows."""
        tree, observed = self.trees[arrival.prompt], arrival.observed
        node = add_observation(tree, arrival)
        self.stats["observation_tokens"] += len(observed.token_ids)
        following = None if observed.status == "failed" else self.policy.next(tree, node, "observed")
        if isinstance(following, Segment):
            self.entering.append(Fork(arrival.prompt, node, following))
        elif isinstance(following, Call):
            self._call(arrival.prompt, node, following)

    def _feed(self, forks: list[Fork]) -> list[Tensor]:
        """The logits (V,) after each fork's node; those not kept are computed in one pass."""
        places = list(dict.fromkeys((fork.prompt, fork.node) for fork in forks))
        known = {place: self.parked.border(*place) for place in places}
        missing = [place for place in places if known[place] is None]
        if missing:
            found = self.forward.extend([self.parked.pending(*place) for place in missing])
            self.stats["steps"] += 1
            for place, new, recurrent, after in zip(missing, *found, strict=True):
                self.parked.store(*place, new, recurrent)
                known[place] = after
        return [known[fork.prompt, fork.node] for fork in forks]
