"""The endpoints for programs, over HTTP and as MCP tools: /generate, /compare and /benchmark. Draws nothing."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from specdemo.engine.trace import Settings, Trace, summarize, to_json
from specdemo.ui import controls
from specdemo.ui.faststart import import_gradio
from specdemo.ui.pump import Pump
from specdemo.ui.service import Service, sentence
from specdemo.ui.verdict import verdict

gr = import_gradio()

EVERY = 0.1
"""Seconds between two pieces of a streamed answer."""


def add(service: Service, pair: str, visitors: int) -> None:
    """Adds the endpoints to the Blocks being built. They answer with `pair`, the one that the server started with."""

    @contextmanager
    def session(stop: threading.Event):
        try:
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

    def answer(opened, request: controls.Request, stop: threading.Event) -> Iterator[list]:
        return Pump(lambda: opened.answer(request.question, request.settings, stop=stop), stop).batches(EVERY)

    def plain(opened, trace: Trace, stop: threading.Event) -> Trace:
        last = trace
        for batch in Pump(lambda: opened.baseline(trace, stop=stop), stop).batches(0.5):
            last = batch[-1] if batch and isinstance(batch[-1], Trace) else last
        return last

    def generate(
        instruction: str, max_new_tokens: int = 100, draft_tokens: str = "auto", drafter: str = "auto",
        temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0, numerics: str = "exact",
    ) -> Iterator[dict]:
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before, and the figures so far. The last one has "done": true
        and the whole answer in "text".

        Args:
            instruction: What to answer, in plain language.
            max_new_tokens: The answer ends after this many tokens at the latest (1 to 2000).
            draft_tokens: How many tokens to guess per round: "auto" or a number from 1 to 16.
            drafter: Who guesses: "auto", "model" or "lookup".
            temperature: 0 takes the likeliest token; higher draws more freely (up to 5).
            top_p: Draw only from the likeliest tokens that add up to this probability (above 0, up to 1).
            top_k: Draw only from this many likeliest tokens; 0 means all.
            seed: The same seed draws the same answer again.
            numerics: "exact" (same answer as without a draft) or "fast" (the processor's defaults).

        Returns:
            {"delta", "tokens", "tokens_per_second", "acceptance_rate", "done", "text", "finish_reason"}
        """
        stop = threading.Event()
        with session(stop) as opened:
            request = controls.parse(instruction, pair, max_new_tokens, draft_tokens, drafter, temperature, top_p,
                                     top_k, seed, numerics)
            count = accepted = examined = 0
            first = last = None
            for batch in answer(opened, request, stop):
                rounds = [event for event in batch if not isinstance(event, Trace)]
                for one in rounds:
                    count += len(one.tokens)
                    accepted += one.accepted
                    examined += one.accepted + bool(one.emitted and one.emitted.kind == "correction")
                    first, last = (first if first is not None else one.shown_at), one.shown_at
                done = bool(batch) and isinstance(batch[-1], Trace)
                if rounds and not done:
                    spent = last - first
                    yield {"delta": "".join(t.text for one in rounds for t in one.tokens), "tokens": count,
                           "tokens_per_second": (count - 1) / spent if spent > 0 else 0.0,
                           "acceptance_rate": accepted / examined if examined else None, "done": False,
                           "text": "", "finish_reason": ""}
                if done:
                    trace = batch[-1]
                    summary = summarize(trace)
                    yield {"delta": "".join(t.text for one in rounds for t in one.tokens), "tokens": summary.tokens,
                           "tokens_per_second": summary.tokens_per_second,
                           "acceptance_rate": summary.acceptance_rate, "done": True, "text": trace.text,
                           "finish_reason": trace.finish_reason}

    def compare(
        instruction: str, max_new_tokens: int = 100, draft_tokens: str = "auto", drafter: str = "auto",
        temperature: float = 0.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0, numerics: str = "exact",
    ) -> dict:
        """Answer an instruction twice on this machine, with and without speculative decoding, and compare.

        Args:
            instruction: What to answer, in plain language.
            max_new_tokens: The answer ends after this many tokens at the latest (1 to 2000).
            draft_tokens: How many tokens to guess per round: "auto" or a number from 1 to 16.
            drafter: Who guesses: "auto", "model" or "lookup".
            temperature: 0 takes the likeliest token; higher draws more freely (up to 5).
            top_p: Draw only from the likeliest tokens that add up to this probability (above 0, up to 1).
            top_k: Draw only from this many likeliest tokens; 0 means all.
            seed: The same seed draws the same answer again.
            numerics: "exact" (same answer as without a draft) or "fast" (the processor's defaults).

        Returns:
            {"text", "speedup", "identical", "verdict", "summary", "trace"}: the answer, how many times faster it was,
            whether both runs gave the same tokens, that in words, all figures, and the whole trace.
        """
        stop = threading.Event()
        with session(stop) as opened:
            request = controls.parse(instruction, pair, max_new_tokens, draft_tokens, drafter, temperature, top_p,
                                     top_k, seed, numerics)
            trace = None
            for batch in answer(opened, request, stop):
                trace = batch[-1] if batch and isinstance(batch[-1], Trace) else trace
            trace = plain(opened, trace, stop)
        summary, words = summarize(trace), verdict(trace)
        return {"text": trace.text, "speedup": summary.speedup, "identical": trace.identical,
                "verdict": f"{words.headline}: {words.sentence} {words.reason}".strip(),
                "summary": dataclasses.asdict(summary), "trace": json.loads(to_json(trace))}

    def benchmark(
        limit: int = 8, max_new_tokens: int = 64, draft_tokens: str = "auto", drafter: str = "auto",
    ) -> Iterator[dict]:
        """Run the built-in prompts with and without speculative decoding, streamed prompt by prompt.

        Args:
            limit: How many prompts, spread over the tasks (1 to 100).
            max_new_tokens: Each answer ends after this many tokens at the latest (1 to 2000).
            draft_tokens: How many tokens to guess per round: "auto" or a number from 1 to 16.
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
            request = controls.parse("benchmark", pair, max_new_tokens, draft_tokens, drafter, 0, 1, 0, 0, "exact")
            prompts = spread(read_prompts(), controls.number("limit", limit, 1, 100, int))
            plan = Plan(settings=Settings(max_new_tokens=request.settings.max_new_tokens, drafter=drafter,
                                          draft_tokens=request.settings.draft_tokens))
            for batch in Pump(lambda: bench(opened, prompts, plan, stop=stop), stop).batches(EVERY):
                for event in batch:
                    if isinstance(event, Row):
                        yield {"done": False, "row": dataclasses.asdict(event), "report": None}
                    elif isinstance(event, Report):
                        yield {"done": True, "row": None, "report": json.loads(report_json(event))}

    for function in (generate, compare, benchmark):
        gr.api(function, api_name=function.__name__, concurrency_limit=visitors)
