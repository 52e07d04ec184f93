"""The event loop of async tools: one per process, as in TRL, so that their open connections outlive a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

_loops: list[asyncio.AbstractEventLoop] = []
_making = threading.Lock()


def awaited(value: Awaitable) -> Any:
    """The result of an async tool, or its exception. Blocks this thread while the loop also serves other calls."""
    done: Future = Future()
    asyncio.run_coroutine_threadsafe(_fulfil(done, value), _loop())
    return done.result()


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
            threading.Thread(target=_loops[0].run_forever, name="async tools", daemon=True).start()
    return _loops[0]
