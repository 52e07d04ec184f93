"""A language model behind an OpenAI-compatible endpoint as a judge: one request per distinct question.

POST URL/chat/completions {"model", "messages", "temperature": 0} -> {"choices": [{"message": {"content": ...}}]}.
The settings are environment variables, so that no recipe and no log holds the key:

    JUDGE_URL       such as http://localhost:8000/v1, required
    JUDGE_MODEL     the endpoint's name of the model, required
    JUDGE_API_KEY   sent as a bearer token, if given
    JUDGE_TIMEOUT   seconds per request (60)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
from urllib.parse import urlsplit

from task.errors import UserError
from task.runners.optional import Unavailable, need

ATTEMPTS = 3  # without a connection, or if the server is busy or fails (429, 5xx); not after a timeout
BACK_OFF = 0.5  # seconds before the second attempt, doubled for the third
MAX_REPLY = 2**20  # bytes


class JudgeError(UserError):
    """The judge gave no usable reply."""


class LLMJudge:
    """Asks one endpoint. Its methods run in the event loop of `task.runners.event_loop`.

    A question that was answered is not sent again in this process, and one that is under way is sent once. Failures are
    not kept: the next call tries again.

    Attributes:
        asked: requests that were answered.
    """

    def __init__(self, url: str, model: str, key: str | None = None, timeout: float = 60.0):
        need("httpx2", "search")
        self.url, self.model, self.key, self.timeout = f"{url.rstrip('/')}/chat/completions", model, key, timeout
        self.asked = 0
        self._replies: dict[str, asyncio.Future] = {}
        self._client = None

    async def ask(self, messages: list[dict]) -> str:
        """The text of the reply. Raises JudgeError, and TimeoutError if it takes longer than `timeout` seconds."""
        question = json.dumps(messages)
        known = self._replies.get(question)
        if known is None:
            known = self._replies[question] = asyncio.ensure_future(self._ask(messages))
            known.add_done_callback(lambda done: self._forget(question, done))
        return await asyncio.shield(known)  # others may wait for the same reply

    def _forget(self, question: str, done: asyncio.Future) -> None:
        if done.cancelled() or done.exception() is not None:
            del self._replies[question]

    async def _ask(self, messages: list[dict]) -> str:
        for attempt in range(1, ATTEMPTS + 1):
            status, content = await self._post({"model": self.model, "messages": messages, "temperature": 0})
            if status == 200:
                self.asked += 1
                return self._text(content)
            if attempt == ATTEMPTS or not (status is None or status == 429 or status >= 500):
                what = content if status is None else f"answered with status {status}"
                raise JudgeError(f"the judge {self.url} {what}: check JUDGE_URL, JUDGE_MODEL and JUDGE_API_KEY")
            await asyncio.sleep(BACK_OFF * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    async def _post(self, question: dict) -> tuple[int | None, str]:
        """(status, content) of the response; (None, why) without one."""
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=None)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with (
                asyncio.timeout(self.timeout),
                self._client.stream("POST", self.url, json=question, headers=headers) as response,
            ):
                content = bytearray()
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > MAX_REPLY:
                        raise JudgeError(f"{self.url} answered with more than {MAX_REPLY} bytes")
                return response.status_code, content.decode("utf-8", "replace")
        except TimeoutError as error:
            raise TimeoutError(f"{self.url} did not answer within {self.timeout:g} s") from error
        except (httpx2.HTTPError, OSError) as error:
            return None, f"cannot be reached ({type(error).__name__}: {error})"

    def _text(self, content: str) -> str:
        with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, RecursionError):
            text = json.loads(content)["choices"][0]["message"]["content"]
            if isinstance(text, str):
                return text
        raise JudgeError(f"{self.url} answered with something that is no chat completion: {content[:80]!r}")


def judge_of_environment() -> LLMJudge:
    """The judge that the environment variables name; one per process and setting.

    Raises Unavailable if they name none, and UserError if they name none that can be asked.
    """
    names = ("JUDGE_URL", "JUDGE_MODEL", "JUDGE_API_KEY", "JUDGE_TIMEOUT")
    return _judge(*(os.environ.get(name) or None for name in names))


@functools.cache
def _judge(url: str | None, model: str | None, key: str | None, timeout: str | None) -> LLMJudge:
    parts = urlsplit(url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname or not model:
        kind = UserError if url and model else Unavailable
        raise kind(
            f"the judge has JUDGE_URL={url!r} and JUDGE_MODEL={model!r}: set both environment variables to an "
            "OpenAI-compatible endpoint, such as http://localhost:8000/v1, and its model."
        )
    try:
        seconds = float(timeout or 60)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UserError(f"JUDGE_TIMEOUT={timeout!r}: give a number of seconds above 0.")
    return LLMJudge(url, model, key, seconds)
