"""The page's own endpoints: everything a session yields, over HTTP, one JSON object a line.

`POST /specdemo/answer` takes {"instruction", "settings", "certify"} and gives lines {"started"}, {"rounds"}, then {"trace"};
`POST /specdemo/baseline` takes a trace and gives {"tokens"}, then {"trace"}. {"waiting"} says which place a request has
in the queue, {"error"} may end either. Empty lines keep the connection lively while there is nothing to say, so that a
reader can look up. `client` reads all this.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from specdemo.trace import MAX_JSON_BYTES, BaselineToken, Settings, Trace, BadInput, from_json, to_json
from specdemo.serving.backend import Backend
from specdemo.serving.generation import Done, Progress, Refused, Request, Started, Waits
from specdemo.serving.schema import read
from specdemo.serving.web import LineStream, as_api_error, body_of, compact, unless_gone

LINES = "application/x-ndjson"
QUIET = 0.25
"""Seconds after which an empty line is sent."""

_settings = TypeAdapter(Settings)


class AnswerRequest(BaseModel):
    """Body of POST /specdemo/answer; `settings` as in a trace, what is left out at its default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    instruction: str
    settings: dict[str, Any] = {}
    certify: bool = True


def endpoints(backend: Backend) -> list[tuple[str, Callable[[HttpRequest], Awaitable[Response]], str]]:
    """(path, handler, method) of each."""

    async def info(request: HttpRequest) -> Response:
        description = await backend.describe()
        return JSONResponse(dataclasses.asdict(description))

    async def answer(request: HttpRequest) -> Response:
        asked: AnswerRequest = read(AnswerRequest, await body_of(request))
        job = Request(settings_of(asked.settings), instruction=asked.instruction, certify=asked.certify)
        return await _lines(request, backend.generate(job), _answer_line)

    async def baseline(request: HttpRequest) -> Response:
        try:
            trace = from_json(await body_of(request, MAX_JSON_BYTES))
        except BadInput as error:
            raise Refused(str(error), "trace") from error
        return await _lines(request, backend.baseline(trace), _baseline_line)

    return [
        ("/specdemo/info", info, "GET"),
        ("/specdemo/answer", answer, "POST"),
        ("/specdemo/baseline", baseline, "POST"),
    ]


def settings_of(data: dict[str, Any]) -> Settings:
    """Settings from JSON, "auto" standing for an adaptive draft. Raises Refused, naming the field."""
    known = {field.name for field in dataclasses.fields(Settings)}
    if unknown := sorted(data.keys() - known):
        raise Refused(f"settings has an unknown field {unknown[0]!r:.60}.", "settings")
    if data.get("draft_tokens") == "auto":
        data = {**data, "draft_tokens": None}
    try:
        return _settings.validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"][:1])
        raise Refused(f"settings.{name}: {first['msg'][:1].lower()}{first['msg'][1:]}.", f"settings.{name}") from None


async def _lines(
    request: HttpRequest, events: AsyncIterator[list[Any]], line: Callable[[list[Any]], dict[str, Any]]
) -> Response:
    """The stream of lines; what is refused is refused before it begins."""
    try:
        first = await unless_gone(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return LineStream(_written(first, events, line), LINES)


async def _written(
    first: list[Any], events: AsyncIterator[list[Any]], line: Callable[[list[Any]], dict[str, Any]]
) -> AsyncIterator[bytes]:
    coming: asyncio.Future | None = None
    try:
        yield _line(line(first))
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=QUIET)
            if not done:
                yield b"\n"
                continue
            finished, coming = coming, None
            try:
                yield _line(line(finished.result()))
            except StopAsyncIteration:
                return
    except GeneratorExit:
        raise
    except Exception as error:
        yield _line(as_api_error(error).body.model_dump())
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()


def _line(data: dict[str, Any]) -> bytes:
    return (compact(data) + "\n").encode()


def _answer_line(batch: list[Any]) -> dict[str, Any]:
    line: dict[str, Any] = {}
    rounds = []
    for event in batch:
        if isinstance(event, Started):
            line["started"] = event.prompt_tokens
        elif isinstance(event, Progress):
            rounds += [dataclasses.asdict(one) for one in event.rounds]
        elif isinstance(event, Done):
            line["trace"] = json.loads(to_json(event.trace))
    return {**line, "rounds": rounds} if rounds else {**line, **_waiting_of(batch)}


def _waiting_of(batch: list[Any]) -> dict[str, Any]:
    """The last place in the queue that a batch tells, if it tells one."""
    waits = [dataclasses.asdict(one) for one in batch if isinstance(one, Waits)]
    return {"waiting": waits[-1]} if waits else {}


def _baseline_line(batch: list[Any]) -> dict[str, Any]:
    tokens = [dataclasses.asdict(one) for one in batch if isinstance(one, BaselineToken)]
    line: dict[str, Any] = {"tokens": tokens} if tokens else _waiting_of(batch)
    if isinstance(batch[-1], Trace):
        line["trace"] = json.loads(to_json(batch[-1]))
    return line
