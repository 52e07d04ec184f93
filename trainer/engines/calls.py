"""Calls to tools that run in threads while rows decode, and come back at fixed points of the decoding."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from trainer.policies.segment import Call, Observed

EVERY = 8  # steps


@dataclass(frozen=True)
class Arrival:
    """What came back for the node that called."""

    prompt: int
    node: int
    observed: Observed


@dataclass(frozen=True)
class _PendingCall:
    prompt: int
    node: int
    step: int
    future: Future


class Calls:
    """Calls that are out, in the order in which they were made.

    When a call comes back must not depend on how fast it was: the rows that decode together, and with them the random
    numbers a row gets, would change from run to run. So calls come back at every 8th step, each after at least 8 steps
    and waited for if need be, and all of them when no row is left to decode. A tool that takes less time than 8 steps
    is never waited for while rows decode, and several that take longer are waited for together.

    Args:
        limit: the most calls that run at a time; more wait for their turn.
        blank_id: the one token of the observation of a call that raised.
    """

    def __init__(self, limit: int, blank_id: int):
        self.blank_id = blank_id
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="calls")
        self._pending: list[_PendingCall] = []

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *exception) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def prompts(self) -> set[int]:
        """The prompts that wait for a call."""
        return {call.prompt for call in self._pending}

    def submit(self, prompt: int, node: int, call: Call, step: int) -> None:
        self._pending.append(_PendingCall(prompt, node, step, self._pool.submit(call.run)))

    def arrivals(self, step: int, idle: bool) -> list[Arrival]:
        """The calls that come back at this step, waited for, in the order in which they were made."""
        if not idle and step % EVERY:
            return []
        due = [call for call in self._pending if idle or call.step <= step - EVERY]
        self._pending = [call for call in self._pending if call not in due]
        return [Arrival(call.prompt, call.node, self._observed(call.future)) for call in due]

    def _observed(self, future: Future) -> Observed:
        try:
            return future.result()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            return Observed([self.blank_id], "failed", extra={"error": "exception", "what": what})
