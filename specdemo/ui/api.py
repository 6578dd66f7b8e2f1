"""The endpoints for programs, over HTTP and as MCP tools: /generate, /compare and /benchmark. Draws nothing."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypedDict

from specdemo.trace import Round, Settings, Trace, summarize, to_json
from specdemo.ui import controls
from specdemo.ui.choice import Offer
from specdemo.ui.faststart import import_gradio
from specdemo.ui.pump import Pump, update_every
from specdemo.ui.service import Service, sentence
from specdemo.ui.verdict import verdict

gr = import_gradio()

EVERY = 0.1
"""Seconds between two pieces of a streamed answer."""


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
    """An answer with and without speculation; `summary` and `trace` are those of a saved run."""

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


Drafter = Literal["auto", "model", "lookup"]
Numerics = Literal["exact", "fast"]

_SETTINGS = """\
            instruction: What to answer, in plain language.
            max_new_tokens: The answer ends after this many tokens at the latest (1 to 2000).
            draft_tokens: How many tokens to guess per round: "auto" or a number from 1 to 64.
            drafter: Who guesses: "auto", "model" or "lookup".
            temperature: 0 takes the likeliest token; higher draws more freely (up to 5).
            top_p: Draw only from the likeliest tokens that add up to this probability (above 0, up to 1).
            top_k: Draw only from this many likeliest tokens; 0 means all.
            seed: The same seed draws the same answer again.
            numerics: "exact" (same answer as without a draft) or "fast" (the processor's defaults)."""


def _with_settings(function: Callable) -> Callable:
    """Puts the description of the settings, which endpoints share, where the docstring says SETTINGS."""
    function.__doc__ = function.__doc__.replace("            SETTINGS", _SETTINGS)
    return function


def add(service: Service, offer: Offer, visitors: int) -> None:
    """Adds the endpoints to the Blocks being built. They answer with the pair that the server started with."""

    @contextmanager
    def session(stop: threading.Event):
        try:
            pair = offer.first()
            for state in service.states(pair, stop):
                if state.kind == "failed":
                    raise gr.Error(state.text, print_exception=False)
            with service.session(pair) as opened:
                yield opened
        except gr.Error:
            raise
        except LookupError as error:
            raise gr.Error("Another pair is being loaded; ask again in a moment.", print_exception=False) from error
        except Exception as error:
            text = str(error) if isinstance(error, controls.InputError) else sentence(error)
            raise gr.Error(text, print_exception=False) from error
        finally:
            stop.set()

    def answer(instruction: str, values: tuple, compare: bool) -> Iterator[tuple[list[Round], Trace | None]]:
        """The rounds that are new and, at the end, the trace; with `compare` that of both runs."""
        stop = threading.Event()
        with session(stop) as opened:
            request = controls.parse(instruction, offer.first(), *values)
            trace = None
            # The stream says nothing of a certificate, so none is made: under load it would cost others their turn.
            events = Pump(
                lambda: opened.answer(request.question, request.settings, stop=stop, certify=compare), stop)
            for batch in events.batches(update_every(service.users)):
                trace = next((event for event in batch if isinstance(event, Trace)), None)
                if batch and not (trace and compare):
                    yield [event for event in batch if not isinstance(event, Trace)], trace
            if compare:
                first = trace
                for batch in Pump(lambda: opened.baseline(first, stop=stop), stop).batches(0.5):
                    trace = next((event for event in batch if isinstance(event, Trace)), trace)
                yield [], trace

    @_with_settings
    def generate(
        instruction: str, max_new_tokens: int = 100, draft_tokens: str = "auto", drafter: Drafter = "auto",
        temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0, numerics: Numerics = "exact",
    ) -> Iterator[Piece]:
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before, and the figures so far. The last one has "done": true
        and the whole answer in "text".

        Args:
            SETTINGS

        Returns:
            {"delta", "tokens", "tokens_per_second", "acceptance_rate", "done", "text", "finish_reason"}
        """
        values = (max_new_tokens, draft_tokens, drafter, temperature, top_p, top_k, seed, numerics)
        rounds: list[Round] = []
        for new, trace in answer(instruction, values, compare=False):
            rounds += new
            yield _piece(rounds, new, trace)

    @_with_settings
    def compare(
        instruction: str, max_new_tokens: int = 100, draft_tokens: str = "auto", drafter: Drafter = "auto",
        temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0, numerics: Numerics = "exact",
    ) -> Comparison:
        """Answer an instruction twice on this machine, with and without speculative decoding, and compare.

        Args:
            SETTINGS

        Returns:
            {"text", "speedup", "identical", "verdict", "summary", "trace"}: the answer, how many times faster it was,
            whether both runs gave the same tokens, that in words, all figures, and the whole trace.
        """
        values = (max_new_tokens, draft_tokens, drafter, temperature, top_p, top_k, seed, numerics)
        *_, (_, trace) = answer(instruction, values, compare=True)
        summary, words = summarize(trace), verdict(trace)
        return {"text": trace.text, "speedup": summary.speedup, "identical": trace.identical,
                "verdict": f"{words.headline}: {words.sentence} {words.reason}".strip(),
                "summary": dataclasses.asdict(summary), "trace": json.loads(to_json(trace))}

    def benchmark(
        limit: int = 8, max_new_tokens: int = 64, draft_tokens: str = "auto", drafter: Drafter = "auto",
    ) -> Iterator[BenchmarkItem]:
        """Run the built-in prompts with and without speculative decoding, streamed prompt by prompt.

        Args:
            limit: How many prompts, spread over the tasks (1 to 100).
            max_new_tokens: Each answer ends after this many tokens at the latest (1 to 2000).
            draft_tokens: How many tokens to guess per round: "auto" or a number from 1 to 64.
            drafter: Who guesses: "auto", "model" or "lookup".

        Returns:
            {"done", "row", "report"}: a row of figures after each prompt; last, "done" is true and the report is there.
        """
        from specdemo.bench.prompts import read_prompts, spread
        from specdemo.bench.report import Report, Row
        from specdemo.bench.report import to_json as report_json
        from specdemo.bench.run import Plan, bench

        stop = threading.Event()
        with session(stop) as opened:
            values = (max_new_tokens, draft_tokens, drafter, 0, 1, 0, 0, "exact")
            settings: Settings = controls.parse("benchmark", offer.first(), *values).settings
            prompts = spread(read_prompts(), controls.number("limit", limit, 1, 100, int))
            for batch in Pump(lambda: bench(opened, prompts, Plan(settings), stop=stop), stop).batches(EVERY):
                for event in batch:
                    if isinstance(event, Row):
                        yield {"done": False, "row": dataclasses.asdict(event), "report": None}
                    elif isinstance(event, Report):
                        yield {"done": True, "row": None, "report": json.loads(report_json(event))}

    for function, answered in ((generate, Piece), (compare, Comparison), (benchmark, BenchmarkItem)):
        # Gradio takes this annotation as it stands: not from a string, and not from inside an Iterator.
        function.__annotations__["return"] = answered
        gr.api(function, api_name=function.__name__, concurrency_limit=visitors)


def _piece(rounds: list[Round], new: list[Round], trace: Trace | None) -> Piece:
    """The figures of the `rounds` so far and the text of the `new` ones; with a trace, the last item."""
    delta = "".join(token.text for one in new for token in one.tokens)
    if trace is not None:
        summary = summarize(trace)
        return {"delta": delta, "tokens": summary.tokens, "tokens_per_second": summary.tokens_per_second,
                "acceptance_rate": summary.acceptance_rate, "done": True, "text": trace.text,
                "finish_reason": trace.finish_reason}
    tokens, accepted = sum(len(one.tokens) for one in rounds), sum(one.accepted for one in rounds)
    examined = accepted + sum(1 for one in rounds if one.emitted and one.emitted.kind == "correction")
    spent = rounds[-1].shown_at - rounds[0].shown_at
    return {"delta": delta, "tokens": tokens, "tokens_per_second": (tokens - 1) / spent if spent > 0 else 0.0,
            "acceptance_rate": accepted / examined if examined else None, "done": False, "text": "",
            "finish_reason": ""}
