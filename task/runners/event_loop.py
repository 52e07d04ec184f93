"""The event loop of async tools and rewards: one per process, as in TRL, so that open connections outlive a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Any

_loops: list[asyncio.AbstractEventLoop] = []
_making = threading.Lock()


def awaited(value: Awaitable) -> Any:
    """The result of an async function, or its exception. Blocks this thread while the loop also serves other calls."""
    done: Future = Future()
    asyncio.run_coroutine_threadsafe(_fulfil(done, value), _loop())
    return done.result()


def all_awaited(values: Sequence[Awaitable], at_once: int, timeout: float | None) -> list:
    """The result of each, or the exception it raised; at most `at_once` run at a time.

    timeout: seconds for each from its start; beyond it the result is a TimeoutError.
    """

    async def gather():
        free = asyncio.Semaphore(at_once)

        async def one(value):
            async with free:
                return await asyncio.wait_for(value, timeout)

        return await asyncio.gather(*map(one, values), return_exceptions=True)

    return awaited(gather())


async def _fulfil(done: Future, value: Awaitable) -> None:
    """Sets the result from within the coroutine: asyncio's own callback waits for any tool that blocks the loop."""
    try:
        done.set_result(await value)
    except BaseException as error:  # SystemExit and KeyboardInterrupt would end the loop
        done.set_exception(error)


def _loop() -> asyncio.AbstractEventLoop:
    with _making:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="event loop", daemon=True).start()
    return _loops[0]
