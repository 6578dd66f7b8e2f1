"""The OpenAI-compatible API over either backend, with /health, /metrics and /openapi.json.
docs/reference/api.md describes it. Generates no text itself."""

import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from specdemo import __version__
from specdemo.errors import BadInput, SpecdemoError
from specdemo.runs.trace import Trace, summarize, to_json
from specdemo.serving.backend import LocalBackend, Piece, ReplicaBackend, certain
from specdemo.serving.request_guard import MAX_BODY, RequestGuard, has_key, refusal
from specdemo.serving.schema import ChatRequest, CommonRequest, CompletionRequest
from specdemo.serving.server_options import ServeOptions
from specdemo.text.grammar import CALL, END_OF_CALL

log = logging.getLogger(__name__)

Backend = LocalBackend | ReplicaBackend

SPARE_BYTES, TOKEN_BYTES = 500_000, 32
"""The most bytes of a body: for all but its texts, and for each token of the model's context."""


class ReadRequest(Request):
    """A request whose JSON the RequestGuard has read."""

    async def json(self) -> Any:
        return self.scope["json"]


class Route(APIRoute):
    def get_route_handler(self) -> Callable:
        handle = super().get_route_handler()

        async def handle_read(request: Request) -> Response:
            return await handle(ReadRequest(request.scope, request.receive))

        return handle_read


def application(backend: Backend, options: ServeOptions, key: str | None) -> FastAPI:
    """The endpoints, behind the RequestGuard in `state.guard`. With a `key` all but /openapi.json
    and /health need it; without it /health gives its status only."""
    # With a key every host name is allowed: a page of another site does not have the key.
    names = ("*",) if key else (options.host, *options.allowed_host)
    guard = RequestGuard(names, options.allow_origin, key)

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return refusal(error)

    app = FastAPI(
        title="specdemo",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        middleware=guard.middleware(),
        exception_handlers=dict.fromkeys(
            (HTTPException, RequestValidationError, SpecdemoError, RecursionError, Exception),
            failed,
        ),
    )
    app.router.route_class = Route
    app.state.guard = guard
    guarded = [Depends(HTTPBearer(auto_error=False))] if key else []  # for /openapi.json

    @app.get("/health")
    async def health(request: Request) -> Response:
        found = await backend.health()
        shown = found if has_key(request, key) else {"status": found["status"]}
        return JSONResponse(shown, 200 if found["status"] == "ready" else 503)

    @app.get("/metrics", dependencies=guarded)
    async def metrics() -> Response:
        return Response(await backend.metrics(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", dependencies=guarded)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [await backend.model()]}

    @app.get("/v1/models/{name:path}", dependencies=guarded)
    async def model_named(name: str) -> dict[str, Any]:
        model = await backend.model()
        guard.most_bytes = min(MAX_BODY, SPARE_BYTES + TOKEN_BYTES * model["context_length"])
        if name not in (model["id"], model["pair"]):
            message = f"The model `{name[:100]}` does not exist here; this server has"
            raise BadInput(f"{message} `{model['id']}`.", "model", "model_not_found")
        return model

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def chat(asked: ChatRequest, request: Request) -> Response:
        return await answer(backend, asked, await model_named(asked.model), request)

    @app.post("/v1/completions", dependencies=guarded)
    async def completion(asked: CompletionRequest, request: Request) -> Response:
        return await answer(backend, asked, await model_named(asked.model), request)

    return app


async def answer(
    backend: Backend, asked: CommonRequest, model: dict[str, Any], request: Request
) -> Response:
    """The answer, whole or as a stream, as the request says."""
    form, text = Form(asked, model), ""
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(aclosing(backend.answer(asked)))
        async for event in events:
            if await request.is_disconnected():
                raise HTTPException(499, "The client closed its connection.")
            if asked.stream and event.what is not None:  # the request was not refused
                return StreamingResponse(
                    server_sent(form, event, events),
                    headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
                    media_type="text/event-stream",
                    background=BackgroundTask(stack.pop_all().aclose),
                )
            text += event.text
    return JSONResponse(form.whole(text, event.what))


class Form:
    """Writes an answer as JSON: of a chat or of a completion, whole or as chunks."""

    def __init__(self, asked: CommonRequest, model: dict[str, Any]):
        self._asked, self._chat = asked, isinstance(asked, ChatRequest)
        self._reader = CallReader() if asked.callable_tools else None
        self._begun = False
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model["id"],
        }

    def whole(self, text: str, trace: Trace) -> dict[str, Any]:
        """The answer without streaming."""
        message = {"role": "assistant", "content": text, "refusal": None}
        if self._reader:
            text, calls = self._reader.read(text, last=True)
            if calls:
                message |= {"content": text or None, "tool_calls": calls}
        content = {"message": message} if self._chat else {"text": text}
        return {**self._written(content, trace), "usage": _usage(trace)}

    def chunks(self, event: Piece) -> Iterator[dict[str, Any]]:
        """The chunks for an event; there may be none."""
        what, text, calls = event.what, event.text, []
        begins, ends = not self._begun, isinstance(what, Trace)
        self._begun = True
        if self._reader:
            text, calls = self._reader.read(text, last=ends)
        if not (text or calls or begins or ends):
            return
        content, head = {"text": text}, self._head
        if self._chat:
            role = {"role": "assistant"} if begins else {}
            called = {"tool_calls": calls} if calls else {}
            content = {"delta": {**role, "content": text, **called}}
            head = {**head, "object": "chat.completion.chunk"}
        yield {**self._written(content, what), **head}
        options = self._asked.stream_options
        if ends and options and options.include_usage:
            yield {**head, "choices": [], "usage": _usage(what)}

    def _written(self, content: dict, what: Any) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": None}
        if not isinstance(what, Trace):
            return {**self._head, "choices": [choice]}
        choice["finish_reason"] = {"context": "length"}.get(what.finish_reason, what.finish_reason)
        if self._reader and self._reader.count and what.finish_reason == "stop":
            choice["finish_reason"] = "tool_calls"
        summary = summarize(what)
        figures = {
            "acceptance_rate": summary.acceptance_rate,
            "rounds": summary.rounds,
            "tokens": summary.tokens,
            "tokens_per_round": summary.tokens_per_round,
            "draft_tokens": summary.drafted,
            "accepted_tokens": summary.accepted,
            "time_to_first_token_s": summary.time_to_first_token,
            "prefill_s": what.prefill_seconds,
            "decode_s": summary.decode_seconds,
            "draft_s": summary.draft_seconds,
            "verify_s": summary.verify_seconds,
            "tokens_per_second": summary.tokens_per_second,
        }
        if self._asked.extension.trace:
            figures["trace"] = json.loads(to_json(what))
        return {**self._head, "choices": [choice], "speculative": figures}


class CallReader:
    """Splits an answer of `grammar.Tools` into content and calls, piece by piece. `count` is the
    number of calls so far."""

    def __init__(self) -> None:
        self._unread, self.count, self._after_call = "", 0, False

    def read(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """The content that is certain after `text`, and the calls that it completes, in the form of
        OpenAI's clients. With `last` a call that is incomplete is content."""
        content, calls = "", []
        self._unread += text
        while True:
            if self._after_call:  # white space between calls is no content
                self._unread = self._unread.lstrip()
            end, begins = certain(self._unread, (CALL,))
            end = len(self._unread) if last and not begins else end
            content, self._unread = content + self._unread[:end], self._unread[end:]
            self._after_call = self._after_call and not end
            call, ends, rest = self._unread.removeprefix(CALL).partition(END_OF_CALL)
            if not ends:
                break
            self._unread, self._after_call = rest, True
            calls.append(self._written(json.loads(call)))
        return content + (self._unread if last else ""), calls

    def _written(self, call: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        return {
            "index": self.count - 1,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call["name"], "arguments": arguments},
        }


def _usage(trace: Trace) -> dict[str, int]:
    prompt, made = trace.prompt_tokens, len(trace.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


async def server_sent(
    form: Form, event: Piece, events: AsyncIterator[Piece]
) -> AsyncIterator[bytes]:
    """The stream as server-sent events, `event` the first. An error is sent as the last event.
    While no event comes, comments are sent, so that no proxy ends the stream."""
    try:
        while True:
            if event.what is None:
                yield b": nothing new\n\n"
            else:
                for chunk in form.chunks(event):
                    text = json.dumps(chunk, ensure_ascii=False, allow_nan=False)
                    yield f"data: {text}\n\n".encode()
            event = await anext(events)
    except StopAsyncIteration:
        yield b"data: [DONE]\n\n"
    except Exception as error:
        if not isinstance(error, SpecdemoError):
            log.error("A request failed.", exc_info=error)
        yield b"data: %b\n\n" % refusal(error).body
