"""The HTTP part of a search server: accepted requests, the form of answers, and the batching of waiting requests."""

import asyncio
import logging

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from task.retrieval.passages import Passage, Retriever

MAX_BODY = 2**20  # bytes of a request
BODY_SECONDS = 30.0  # for a client to send it
MAX_QUERIES = 256  # per request, and per search
MAX_TOPK = 100

logger = logging.getLogger(__name__)


class Question(BaseModel):
    """The body of POST /retrieve."""

    model_config = ConfigDict(strict=True)
    queries: list[str] = Field(min_length=1, max_length=MAX_QUERIES)
    topk: int = Field(default=3, ge=1, le=MAX_TOPK)
    return_scores: bool = False


class Refusal(Exception):
    """A request that cannot be served: a status and one sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def make_app(retriever: Retriever, index: str) -> FastAPI:
    """`retriever` has `documents` too; `index` is its kind, for /health."""
    app, joined = FastAPI(title="Search"), _Joined(retriever)

    @app.get("/health")
    async def health() -> dict:
        return {"status": "ok", "documents": len(retriever.documents), "index": index}

    @app.post("/retrieve")
    async def retrieve(request: Request) -> JSONResponse:
        question = _parse(await _body(request))
        found = await joined.search(question.queries, question.topk)
        return JSONResponse({"result": [[_answer(one, question.return_scores) for one in each] for each in found]})

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.status)

    return app


async def _body(request: Request) -> bytes:
    """The request's body, limited in size and time. Raises Refusal."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise Refusal(413, f"the body is longer than {MAX_BODY} bytes: send fewer or shorter queries.")
    except TimeoutError as error:
        raise Refusal(408, f"the body did not arrive within {BODY_SECONDS:.0f} s: send it in one go.") from error
    except ClientDisconnect as error:  # nobody receives it, but it keeps a traceback out of the log
        raise Refusal(400, "the client disconnected before its request was complete.") from error
    return bytes(body)


def _parse(body: bytes) -> Question:
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise Refusal(
            400, f'{where}: {first["msg"]}; send {{"queries": ["..."], "topk": 3, "return_scores": true}}.'
        ) from error


def _answer(passage: Passage, with_score: bool) -> dict:
    document = {"id": passage.id, "title": passage.title, "text": passage.text}
    document["contents"] = f'"{passage.title}"\n{passage.text}'
    return {"document": document, "score": passage.score} if with_score else document


class _Joined:
    """Searches one batch at a time, each with all requests that arrived meanwhile, for full batches."""

    def __init__(self, retriever: Retriever):
        self.retriever = retriever
        self._waiting: list[tuple[list[str], int, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None

    async def search(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((queries, top_k, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                texts = [query for queries, _, _ in batch for query in queries]
                found = await run_in_threadpool(self.retriever.search, texts, max(top_k for _, top_k, _ in batch))
            except Exception:
                logger.exception("a search failed")
                found = None
            place = 0
            for queries, top_k, answer in batch:
                if answer.done():  # its client has disconnected
                    pass
                elif found is None:
                    answer.set_exception(Refusal(500, "the search failed: the server's log says why."))
                else:
                    answer.set_result([each[:top_k] for each in found[place : place + len(queries)]])
                place += len(queries)

    def _take(self) -> list[tuple[list[str], int, asyncio.Future]]:
        """The oldest waiting requests, with at most MAX_QUERIES queries in total."""
        count, queries = 0, 0
        while count < len(self._waiting) and queries + len(self._waiting[count][0]) <= MAX_QUERIES:
            queries += len(self._waiting[count][0])
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken
