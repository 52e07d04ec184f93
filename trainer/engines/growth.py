"""Grows one batch of trees from the prompts to the leaves."""

# R live rows, V vocabulary

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.engines.batch_forward import BatchForward
from trainer.engines.calls import Arrival, Calls
from trainer.engines.live_rows import Fork, LiveRows
from trainer.engines.parked import Parked
from trainer.engines.sampling import Sampler
from trainer.policies.policy import Policy
from trainer.policies.segment import Call, Segment
from trainer.tree import Node, Tree


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
        self.expands, self.splits = policy.expands, policy.splits
        self.entering: list[Fork] = []
        self.steps = 0

    def run(self) -> None:
        """Grows until no row is live, no call is pending and the policy wants no further branches."""
        logits = self.forward.prefill()
        while True:
            logits = self._enter(logits)
            if not self.rows:
                break
            logits, distinct = self._fork(logits)
            self._sample(logits, distinct)
            self._finish()
            if self.rows:
                logits = self.forward.step(self.rows.newest)
                self.stats["steps"] += 1
            self.steps += 1

    def _fork(self, logits: Tensor) -> tuple[Tensor, list]:
        """Replaces forking rows by their children; returns logits (R, V) and the rows that draw distinct tokens."""
        forking = self.rows.forking
        if not forking:
            return logits, []
        if self.expands:
            for index, fork in forking:
                self.parked.keep_border(fork.prompt, fork.node, logits[index])
        sources, distinct = self.rows.fork()
        self.forward.select(sources)
        return logits[torch.tensor(sources, device=logits.device)], distinct

    def _sample(self, logits: Tensor, distinct: list) -> None:
        """Samples one token per row, and forks before it where the policy decides so."""
        usual = self.sampler.sampling
        history = None if usual.repetition_penalty == 1 else self.rows.history(self.forward.prompts)
        temperature = self.rows.temperatures(usual.temperature)
        tokens, logprobs, entropies = self.sampler(logits, history, temperature, distinct)
        self.rows.append(tokens, logprobs, entropies)
        if self.splits:
            wanted = self.policy.candidates(entropies, logprobs).nonzero().flatten().tolist()
            if wanted:
                self._split(wanted, (logits, history, temperature), (tokens, logprobs, entropies))
        self.stats["generated_tokens"] += len(self.rows)
        if self.progress is not None:
            self.progress(self.stats["generated_tokens"])

    def _split(self, wanted: list[int], drawn_from: tuple, drawn: tuple) -> None:
        """Asks the policy about each candidate row, highest entropy first; siblings draw from the same distribution."""
        tokens, logprobs, entropies = (values.tolist() for values in drawn)
        sources, siblings = list(range(len(self.rows))), []
        for index in sorted(wanted, key=lambda index: -entropies[index]):
            row = self.rows.rows[index]
            tree, grown = self.trees[row.prompt], self.rows.grown(index)
            fork = self.policy.split(tree, row.node, grown, entropies[index], logprobs[index])
            if fork is None:
                continue
            self.stats["forks"] += 1
            new = self.rows.split(index, fork.count)
            sources += [index] * len(new)
            logits, *others = (None if values is None else values[[index] * len(new)] for values in drawn_from)
            distinct = [(list(range(len(new))), [tokens[index]])] if fork.distinct else []
            siblings.append(self.sampler(logits, *others, distinct))
        if siblings:
            new = list(range(len(tokens), len(sources)))
            self.rows.spread(sources, new, tuple(torch.cat(values) for values in zip(*siblings, strict=True)))
            self.forward.select(sources)

    def _finish(self) -> None:
        """Handles the nodes that ended with the last token: they get children, make a call, or are leaves."""
        finished = self.rows.finish(self.policy)
        if not finished:
            return
        for row in finished:
            if row.call is not None or self.expands:
                self.parked.keep(row.row, row.prompt, row.node)
            if row.call is not None:
                self._call(row.prompt, row.node, row.call)
        self.forward.select(self.rows.drop(finished))
        self._expand_or_free({row.prompt for row in finished})

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
            else:
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
        )
        self.rows.enter(forks)
        return torch.cat([logits[: len(self.rows) - len(forks)], torch.stack(after)])

    def _observe(self, arrival: Arrival) -> None:
        """Adds a call's result as an observation node and asks the policy what follows."""
        tree, observed = self.trees[arrival.prompt], arrival.observed
        parent = tree.nodes[arrival.node]
        assert observed.token_ids, f"an observation of tree {tree.prompt_id} has no tokens"
        node = tree.add(
            Node(
                arrival.node,
                "observation",
                list(observed.token_ids),
                sampled=False,
                status=observed.status,
                group=parent.group,
                media=observed.media,
                extra=observed.extra,
            )
        )
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
            states, logits = self.forward.extend([self.parked.pending(*place) for place in missing])
            self.stats["steps"] += 1
            for place, new, after in zip(missing, states, logits, strict=True):
                self.parked.store(*place, new)
                known[place] = after
        return [known[fork.prompt, fork.node] for fork in forks]
