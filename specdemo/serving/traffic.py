"""Visitors for a service: each asks, reads the streamed answer to its end, and asks again. Times what they see.

Speaks the public API only, so any OpenAI-compatible server can be loaded with it. Prints nothing.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

PATIENCE = 60.0
"""Seconds without a byte after which an answer counts as hung."""


@dataclass
class Asked:
    """One request as its client saw it; times are monotonic seconds. `tokens` are known at a good end only.

    `ended` is "finished", "refused" (a status other than 200), "interrupted" (an error in the stream), "broken" (the
    connection ended without one) or "hung"; `said` is the error's own sentence.
    """

    since: float
    pieces: list[float] = field(default_factory=list)
    tokens: int | None = None
    ended: str = "hung"
    said: str = ""
    until: float = 0.0

    @property
    def first(self) -> float | None:
        """Seconds to the first text."""
        return self.pieces[0] - self.since if self.pieces else None


@dataclass(frozen=True, slots=True)
class Level:
    """What all visitors together saw in a stretch of time. Seconds, and tokens a second."""

    seconds: float
    tokens_per_s: float
    first_token_p50_s: float | None
    finished: int
    refused: int
    interrupted: int
    broken: int
    hung: int


class Crowd:
    """`visitors` asking at `url` as long as the context is open. `asked` grows by one for each request begun."""

    def __init__(self, url: str, model: str, questions: Sequence[str], visitors: int, *, max_tokens: int,
                 key: str | None = None):  # fmt: skip
        self.asked: list[Asked] = []
        self._model, self._questions, self._max_tokens = model, questions, max_tokens
        self._visitors = visitors
        self._leaving = asyncio.Event()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(PATIENCE, connect=10, pool=None)
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)
        self._tasks: list[asyncio.Task] = []

    async def __aenter__(self) -> Crowd:
        self._tasks = [asyncio.create_task(self._visit(number)) for number in range(self._visitors)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()  # everybody reads on to the end of what was begun
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _visit(self, number: int) -> None:
        turn = number
        while not self._leaving.is_set():
            one = Asked(time.monotonic())
            self.asked.append(one)
            await self._ask(self._questions[turn % len(self._questions)], one)
            one.until = time.monotonic()
            turn += self._visitors
            if one.ended in ("refused", "broken"):
                await asyncio.sleep(0.5)

    async def _ask(self, question: str, one: Asked) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    one.ended, one.said = "refused", response.text[:300]
                    return
                async for line in response.aiter_lines():
                    self._read(line, one)
            if one.ended == "hung":
                one.ended = "broken"
        except httpx.TimeoutException:
            one.ended = "hung"
        except httpx.HTTPError as error:
            one.ended, one.said = "broken", type(error).__name__

    @staticmethod
    def _read(line: str, one: Asked) -> None:
        data = line.removeprefix("data: ")
        if data == line:
            return
        if data == "[DONE]":
            one.ended = "finished"
            return
        event = json.loads(data)
        if "error" in event:
            one.ended, one.said = "interrupted", event["error"]["message"]
        elif event.get("usage"):
            one.tokens = event["usage"]["completion_tokens"]
        elif event["choices"] and event["choices"][0]["delta"].get("content"):
            one.pieces.append(time.monotonic())


def level(asked: Sequence[Asked], begin: float, end: float) -> Level:
    """What was seen from `begin` to `end`: tokens by when they came, requests by when they ended.

    A piece of text counts as the tokens that its answer had per piece; of an answer cut off, as the others' mean.
    """
    known = [one for one in asked if one.tokens is not None and one.pieces]
    pieces = sum(len(one.pieces) for one in known)
    usual = sum(one.tokens or 0 for one in known) / pieces if pieces else 1.0
    tokens = 0.0
    for one in asked:
        each = (one.tokens / len(one.pieces)) if one.tokens is not None and one.pieces else usual
        tokens += each * sum(begin <= at < end for at in one.pieces)
    ended = [one for one in asked if begin <= one.until < end]
    firsts = [one.first for one in asked if one.pieces and begin <= one.pieces[0] < end and one.first is not None]
    count = {name: sum(one.ended == name for one in ended) for name in
             ("finished", "refused", "interrupted", "broken", "hung")}  # fmt: skip
    return Level(
        seconds=end - begin,
        tokens_per_s=tokens / (end - begin) if end > begin else 0.0,
        first_token_p50_s=statistics.median(firsts) if firsts else None,
        **count,
    )
