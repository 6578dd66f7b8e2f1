"""The endpoints for programs, over HTTP and as MCP tools: /generate, /compare and /benchmark."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypedDict

import gradio as gr

from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.settings import Settings, parse
from specdemo.trace import Trace, summarize, to_json
from specdemo.ui.choice import Offer
from specdemo.ui.events import MAX_EVENTS
from specdemo.ui.handlers import SLOWEST_UPDATE, UPDATE_EVERY
from specdemo.ui.inputs import help_of
from specdemo.ui.limits import LimitedSession, visitor_of
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence, verdict

MAX_PROMPTS = 100
"""Prompts of one benchmark at most."""

Drafter = Literal["auto", "model", "lookup"]
Numerics = Literal["exact", "fast"]


class Piece(TypedDict):
    """One item of a streamed answer. `text` and `finish_reason` are empty until `done`."""

    delta: str
    tokens: int
    tokens_per_second: float
    acceptance_rate: float | None
    done: bool
    text: str
    finish_reason: str


class Comparison(TypedDict):
    """An answer and its baseline; `summary` and `trace` are those of a saved run."""

    text: str
    speedup: float | None
    identical: bool | None
    verdict: str
    summary: dict[str, Any]
    trace: dict[str, Any]


class BenchmarkItem(TypedDict):
    """A row of a benchmark, or, when `done`, its report."""

    done: bool
    row: dict[str, Any] | None
    report: dict[str, Any] | None


def add(service: Service, offer: Offer) -> None:
    """Adds the endpoints to the Blocks being built. They use the pair the server started with."""
    endpoints = _Endpoints(service, offer)
    for function in (endpoints.generate, endpoints.compare, endpoints.benchmark):
        gr.api(function, api_name=function.__name__, concurrency_limit=MAX_EVENTS)


def _endpoint(returns: type, description: str) -> Callable[[Callable], Callable]:
    """Completes an endpoint's docstring by its parameters and its answer."""

    def completed(function: Callable) -> Callable:
        lines = [function.__doc__.rstrip(), "", "Args:"]
        for name in function.__annotations__:
            if name == "instruction":
                lines.append("    instruction: What to answer, in plain language.")
            elif name == "limit":
                lines.append(f"    limit: How many prompts, over all tasks (1 to {MAX_PROMPTS}).")
            elif name not in ("request", "return"):
                lines.append(f"    {name}: {help_of(name)}")
        keys = ", ".join(f'"{key}"' for key in returns.__annotations__)
        function.__doc__ = "\n".join([*lines, "", "Returns:", f"    {{{keys}}}: {description}"])
        # Gradio takes this annotation as it stands: not a string, and not inside an Iterator.
        function.__annotations__["return"] = returns
        return function

    return completed


class _Endpoints:
    def __init__(self, service: Service, offer: Offer):
        self._service, self._offer = service, offer

    @contextmanager
    def _opened(self, request: gr.Request) -> Iterator[tuple[LimitedSession, threading.Event]]:
        """The session and its stop signal; what fails is told in one sentence."""
        stop = threading.Event()
        try:
            pair = self._offer.first()
            for state in self._service.states(pair, stop):
                if state.kind == "failed":
                    raise RequestFailed(state.text)
            with self._service.session(pair, visitor_of(request)) as session:
                yield session, stop
        except Exception as error:
            raise gr.Error(error_sentence(error), print_exception=False) from error
        finally:
            stop.set()

    @_endpoint(
        Piece, "the new text, the figures so far, and at the end the whole answer and why it ended."
    )
    def generate(
        self,
        request: gr.Request,
        instruction: str,
        max_new_tokens: int = 100,
        draft_tokens: str = "auto",
        drafter: Drafter = "auto",
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        numerics: Numerics = "exact",
    ) -> Iterator[Piece]:
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before, and the figures so far. The last
        one has "done": true and the whole answer in "text".
        """
        given = _settings(locals())
        with self._opened(request) as (session, stop):
            rounds: list[Round] = []
            sent, sent_at = 0, 0.0
            for event in session.answer(instruction, parse(Settings, given), stop=stop):
                if isinstance(event, Trace):
                    ended = {"done": True, "text": event.text, "finish_reason": event.finish_reason}
                    yield {**_piece(rounds, rounds[sent:]), **ended}
                    return
                rounds.append(event)
                pause = min(UPDATE_EVERY * self._service.users, SLOWEST_UPDATE)
                if time.monotonic() - sent_at >= pause:
                    yield _piece(rounds, rounds[sent:])
                    sent, sent_at = len(rounds), time.monotonic()

    @_endpoint(
        Comparison,
        "the answer, how many times faster it came, whether both runs gave the same tokens, "
        "that in words, all figures, and the whole trace.",
    )
    def compare(
        self,
        request: gr.Request,
        instruction: str,
        max_new_tokens: int = 100,
        draft_tokens: str = "auto",
        drafter: Drafter = "auto",
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        numerics: Numerics = "exact",
    ) -> Comparison:
        """Answer an instruction twice on this machine, with speculative and with autoregressive
        decoding, and compare."""
        given = _settings(locals())
        with self._opened(request) as (session, stop):
            *_, trace = session.race(instruction, parse(Settings, given), stop=stop)
        summary, words = summarize(trace), verdict(trace)
        return {
            "text": trace.text,
            "speedup": summary.speedup,
            "identical": trace.identical,
            "verdict": f"{words.headline}: {words.sentence} {words.reason}".strip(),
            "summary": dataclasses.asdict(summary),
            "trace": json.loads(to_json(trace)),
        }

    @_endpoint(
        BenchmarkItem,
        'a row of figures after each prompt; last, "done" is true and the report is there.',
    )
    def benchmark(
        self,
        request: gr.Request,
        limit: int = 8,
        max_new_tokens: int = 64,
        draft_tokens: str = "auto",
        drafter: Drafter = "auto",
    ) -> Iterator[BenchmarkItem]:
        """Run the built-in prompts with and without speculative decoding, streamed by prompt."""
        from specdemo.bench.prompts import read_prompts, spread
        from specdemo.bench.race import Plan, bench
        from specdemo.bench.report import Report, Row
        from specdemo.bench.report import to_json as report_json

        given = _settings(locals())
        with self._opened(request) as (session, stop):
            prompts = spread(read_prompts(), prompt_count(limit))
            for event in bench(session, prompts, Plan(parse(Settings, given)), stop=stop):
                if isinstance(event, Row):
                    yield {"done": False, "row": dataclasses.asdict(event), "report": None}
                elif isinstance(event, Report):
                    yield {"done": True, "row": None, "report": json.loads(report_json(event))}


def prompt_count(value: Any) -> int:
    """How many prompts to run. Raises BadInput."""
    if isinstance(value, bool) or value not in range(1, MAX_PROMPTS + 1):
        raise BadInput(
            f"limit is {value!r:.60}; it must be a whole number from 1 to {MAX_PROMPTS}."
        )
    return int(value)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings among an endpoint's arguments."""
    names = {field.name for field in dataclasses.fields(Settings)}
    return {name: value for name, value in given.items() if name in names}


def _piece(rounds: list[Round], new: list[Round]) -> Piece:
    """The figures of the `rounds` so far and the text of the `new` ones."""
    tokens = sum(len(one.tokens) for one in rounds)
    accepted = sum(one.accepted for one in rounds)
    rejected = sum(1 for one in rounds if one.emitted and one.emitted.kind == "correction")
    spent = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
    return {
        "delta": "".join(token.text for one in new for token in one.tokens),
        "tokens": tokens,
        "tokens_per_second": (tokens - 1) / spent if spent > 0 else 0.0,
        "acceptance_rate": accepted / (accepted + rejected) if accepted + rejected else None,
        "done": False,
        "text": "",
        "finish_reason": "",
    }
