"""What every endpoint shares: bodies of bounded size, clients that leave, errors in the API's form, streamed lines."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from specdemo.serving.backend import Busy, NotReady
from specdemo.serving.generation import Interrupted, Refused
from specdemo.serving.schema import ErrorBody, ErrorDetail

log = logging.getLogger(__name__)

KEY_VARIABLE = "SPECDEMO_API_KEY"
MAX_BODY = 4_000_000
"""Bytes of a request's body; no prompt that a context holds is longer."""

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class ApiError(Exception):
    """An answer other than 200, in the API's form."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None,
                 code: str | None = None, headers: dict[str, str] | None = None):  # fmt: skip
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body = ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code))

    def response(self) -> JSONResponse:
        return JSONResponse(self.body.model_dump(), self.status, self.headers)


class ClientGone(Exception):
    """The client closed its connection; nobody reads what would be answered."""


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception; one that nobody foresaw is logged and only named."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Refused):
        return ApiError(400, error.message, param=error.param, code=error.code)
    if isinstance(error, Busy | NotReady):
        headers = {"Retry-After": str(math.ceil(error.retry_after))}
        if isinstance(error, Busy):
            return ApiError(429, error.message, "requests", code="rate_limit_exceeded", headers=headers)
        return ApiError(503, error.message, "server_error", code="model_not_ready", headers=headers)
    if isinstance(error, Interrupted):
        return ApiError(500, str(error), "server_error", code="answer_interrupted")
    log.error("A request failed.", exc_info=error)
    return ApiError(500, f"The server had an error while processing your request ({type(error).__name__}).",
                    "server_error")  # fmt: skip


def guarded(handler: Handler, key: str | None, count: Callable[[str, int], None], request_ids: bool) -> Handler:
    """The handler behind the key, if there is one; its exceptions become responses, and every response is counted."""

    async def handle(request: Request) -> Response:
        try:
            if key is not None:
                require_key(request, key)
            response = await handler(request)
        except ClientGone:
            response = Response(status_code=499)
        except Exception as error:
            response = as_api_error(error).response()
        if request_ids:
            given = request.headers.get("x-request-id", "")[:100]
            response.headers["x-request-id"] = given or f"req_{uuid.uuid4().hex}"
        count(request.url.path, response.status_code)
        return response

    return handle


def key_from_environment() -> str | None:
    """The bearer key that requests must bring, None when none is set."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def require_key(request: Request, key: str) -> None:
    """Raises ApiError for a request without the key, in a time that says nothing about how much of it was right."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode()):
        return
    message = "Incorrect API key provided." if given else (
        "You didn't provide an API key: send it in an Authorization header, as in 'Authorization: Bearer YOUR_KEY'.")  # fmt: skip
    raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def body_of(request: Request, limit: int = MAX_BODY) -> bytes:
    """The request's body. Raises ApiError when it is larger than `limit` bytes, without having read it all."""
    size, pieces = 0, []
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise ApiError(413, f"The request's body is larger than {limit:,} bytes.", code="request_too_large")
        pieces.append(piece)
    return b"".join(pieces)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives; it is cancelled, and ClientGone raised, when the client leaves before. The body was read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        await _end(working, leaving)


class LineStream(Response):
    """A response of which each piece is sent as it comes, and whose source is closed as soon as the client leaves.

    Starlette's own notices that only when it next sends something: too late for a request that waits its turn.
    """

    def __init__(self, pieces: AsyncIterator[bytes], media_type: str):
        self.body_iterator = pieces
        self.status_code = 200
        self.background = None
        self.media_type = media_type
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(writing, leaving)
        if not writing.cancelled() and not isinstance(writing.exception(), OSError | None):
            writing.result()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for piece in self.body_iterator:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self.body_iterator.aclose()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def compact(data: object) -> str:
    """JSON on one line; what is not ASCII stays as it is."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
