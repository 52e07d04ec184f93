"""The event loop of async tools: one a process, as in TRL, so that what they keep open outlives a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

_loops: list[asyncio.AbstractEventLoop] = []
_making = threading.Lock()


def awaited(value: Awaitable) -> Any:
    """What an async tool gives, or raises; waits for it in this thread while the loop serves other calls too."""
    result, error = asyncio.run_coroutine_threadsafe(_outcome(value), _loop()).result()
    if error is not None:
        raise error
    return result


async def _outcome(value: Awaitable) -> tuple[Any, BaseException | None]:
    try:
        return await value, None
    except BaseException as error:  # SystemExit and KeyboardInterrupt would end the loop
        return None, error


def _loop() -> asyncio.AbstractEventLoop:
    with _making:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="async tools", daemon=True).start()
    return _loops[0]
