"""Tool calls that run in threads while rows decode; their results are collected at fixed decoding steps."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from trainer.policies.segment import Call, Observed

EVERY = 8  # steps


@dataclass(frozen=True)
class Arrival:
    """The result of a call, and the node that made it."""

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
    """The pending calls, in the order in which they were made.

    When a result is collected must not depend on how fast the tool was: otherwise the rows that decode together, and
    with them the random numbers of each row, would change from run to run. So results are collected at every 8th step,
    from calls that are at least 8 steps old, waiting for them if necessary; and from all calls when no row is left to
    decode. A tool that takes less time than 8 steps never makes decoding wait, and slower ones are awaited together.

    Args:
        limit: how many calls may run at the same time; further ones are queued.
        blank_id: the single token of the observation of a call that raised.
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
        """The prompts with pending calls."""
        return {call.prompt for call in self._pending}

    def submit(self, prompt: int, node: int, call: Call, step: int) -> None:
        self._pending.append(_PendingCall(prompt, node, step, self._pool.submit(call.run)))

    def arrivals(self, step: int, idle: bool) -> list[Arrival]:
        """Waits for the results due at this step; in the order of their calls. `idle`: no row is left to decode."""
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
