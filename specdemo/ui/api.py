"""The endpoints for programs, over HTTP and as MCP tools: /generate, /compare and /benchmark."""

# Annotations here are no strings: Gradio derives the endpoints' types from them.
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypedDict

import anyio
import gradio as gr
from gradio.mcp import GradioMCPServer

from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.trace import Trace, over, summarize, to_json
from specdemo.ui import MAX_EVENTS
from specdemo.ui.choice import Offer
from specdemo.ui.inputs import help_of, settings_of
from specdemo.ui.limits import LimitedSession, visitor_of
from specdemo.ui.runs import update_seconds
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


def answer_in_json(tools: GradioMCPServer) -> None:
    """Gives the results of MCP tools as structured content and as JSON text, where Gradio's own
    handler writes Python's repr; reports progress, an item a step, to a client that asks for it."""
    server = tools.mcp_server
    threads = anyio.CapacityLimiter(MAX_EVENTS)

    @server.call_tool()
    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name not in tools.tool_to_endpoint:
            raise BadInput(f"There is no tool {name!r:.60}.")
        function = tools.get_block_fn_from_endpoint_name(tools.tool_to_endpoint[name]).fn
        context = server.request_context
        token = context.meta and context.meta.progressToken

        def last() -> dict[str, Any]:
            found = function(gr.Request(context.request), **arguments)
            for step, item in enumerate(found if inspect.isgenerator(found) else [found]):
                answer = item
                if token is not None:
                    told = [token, step, None, None, str(context.request_id)]
                    anyio.from_thread.run(context.session.send_progress_notification, *told)
            return answer

        try:
            return await anyio.to_thread.run_sync(last, limiter=threads)
        except gr.Error as error:
            raise RequestFailed(error.message) from error


def _described(function: Callable) -> Callable:
    """Adds the parameters to an endpoint's docstring, which programs get to read."""
    words = {
        "instruction": "What to answer, in plain language.",
        "limit": f"How many prompts, over all tasks (1 to {MAX_PROMPTS}).",
    }
    names = list(inspect.signature(function).parameters)[2:]  # after self and request
    lines = "".join(f"\n    {name}: {words.get(name) or help_of(name)}" for name in names)
    function.__doc__ = f"{function.__doc__.rstrip()}\n\nArgs:{lines}"
    return function


class _Endpoints:
    """Generators are annotated with the type of their items: Gradio reads no Iterator."""

    def __init__(self, service: Service, offer: Offer):
        self._service, self._offer = service, offer

    @contextmanager
    def _opened(self, request: gr.Request) -> Iterator[tuple[LimitedSession, threading.Event]]:
        """The session and its stop signal; what fails is told in one sentence."""
        stop = threading.Event()
        try:
            pair = self._offer.first
            for _ in self._service.states(pair, stop):
                pass
            with self._service.session(pair, visitor_of(request)) as session:
                yield session, stop
        except Exception as error:
            raise gr.Error(error_sentence(error), print_exception=False) from error
        finally:
            stop.set()

    @_described
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
    ) -> Piece:
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before, and the figures so far. The last
        one has "done": true, the whole answer in "text" and why it ended in "finish_reason".
        """
        given = locals()
        with self._opened(request) as (session, stop):
            rounds: list[Round] = []
            sent, sent_at = 0, 0.0
            for event in session.answer(instruction, settings_of(given), stop=stop):
                if isinstance(event, Trace):
                    ended = {"text": event.text, "finish_reason": event.finish_reason}
                    yield _piece(rounds, rounds[sent:], done=True, **ended)
                    return
                rounds.append(event)
                if time.monotonic() - sent_at >= update_seconds(self._service):
                    yield _piece(rounds, rounds[sent:])
                    sent, sent_at = len(rounds), time.monotonic()

    @_described
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
        decoding, and compare: the answer, how many times faster it came, whether both runs gave the
        same tokens, that in words, all figures, and the whole trace."""
        given = locals()
        with self._opened(request) as (session, stop):
            *_, trace = session.race(instruction, settings_of(given), stop=stop)
        summary, words = summarize(trace), verdict(trace)
        return {
            "text": trace.text,
            "speedup": summary.speedup,
            "identical": trace.identical,
            "verdict": f"{words.headline}: {words.sentence} {words.reason}".strip(),
            "summary": summary.as_dict(),
            "trace": json.loads(to_json(trace)),
        }

    @_described
    def benchmark(
        self,
        request: gr.Request,
        limit: int = 8,
        max_new_tokens: int = 64,
        draft_tokens: str = "auto",
        drafter: Drafter = "auto",
    ) -> BenchmarkItem:
        """Run the built-in prompts with and without speculative decoding, streamed by prompt: a row
        of figures after each one; last, "done" is true and the report is there."""
        from specdemo.bench.prompts import read_prompts, spread
        from specdemo.bench.race import Bench
        from specdemo.bench.report import Report, Row
        from specdemo.bench.report import to_json as report_json

        given = locals()
        with self._opened(request) as (session, stop):
            if limit not in range(1, MAX_PROMPTS + 1):
                allowed = f"a whole number from 1 to {MAX_PROMPTS}"
                raise BadInput(f"limit is {limit!r:.60}; it must be {allowed}.")
            prompts = spread(read_prompts(), int(limit))
            for event in Bench(session, prompts, settings_of(given), stop=stop):
                if isinstance(event, Row):
                    yield {"done": False, "row": event.as_dict(), "report": None}
                elif isinstance(event, Report):
                    yield {"done": True, "row": None, "report": json.loads(report_json(event))}


def _piece(rounds: list[Round], new: list[Round], **ended: Any) -> Piece:
    """The figures of the `rounds` so far and the text of the `new` ones."""
    tokens = sum(len(one.tokens) for one in rounds)
    accepted = sum(one.accepted for one in rounds)
    rejected = sum(1 for one in rounds if one.emitted and one.emitted.kind == "correction")
    spent = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
    piece = {
        "delta": "".join(token.text for one in new for token in one.tokens),
        "tokens": tokens,
        "tokens_per_second": (tokens - 1) / spent if spent > 0 else 0.0,
        "acceptance_rate": over(accepted, accepted + rejected),
    }
    return {**piece, "done": False, "text": "", "finish_reason": "", **ended}
