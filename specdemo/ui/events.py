"""Runs of the page: turns a session's events into small JSON envelopes for the page's script, or
into the items of /generate, and stops runs. The server keeps no run: a link holds the whole run."""

# No `from __future__ import annotations` here: Gradio reads the endpoint's types from annotations.
import json
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from threading import Event
from typing import Any

import gradio as gr

from specdemo.engine.rounds import Round
from specdemo.engine.scheduler import Waiting
from specdemo.errors import BadInput
from specdemo.runs.race import enough
from specdemo.runs.trace import BaselineToken, Trace, from_json, judged, over, to_json
from specdemo.ui import MAX_EVENTS
from specdemo.ui.offers import Offer, models_of, settings_of
from specdemo.ui.service import Service, Visitor, visitor_of
from specdemo.ui.wording import curve, error_sentence, origin, queue_place, verdict, while_loading

AGAIN = "The same race again, unwatched, until its verdict is certain. Stop ends it."


class Running:
    """The stop signals of the runs in progress, one for each browser session."""

    def __init__(self):
        self._stops: dict[str, Event] = {}

    @contextmanager
    def run(self, session: str) -> Iterator[Event]:
        """The stop signal of a new run, set at its end; stops the session's earlier run."""
        self.stop(session)
        stop = self._stops[session] = Event()
        try:
            yield stop
        finally:
            stop.set()
            if self._stops.get(session) is stop:
                del self._stops[session]

    def stop(self, session: str) -> None:
        """Stop the session's run, if there is one."""
        self._stops.get(session, Event()).set()


class Channel:
    """Makes the envelopes of one run. The size of an envelope does not grow with the answer."""

    def __init__(self, limit: int = 0):
        self.run, self.limit = uuid.uuid4().hex[:16], limit
        self.rounds: list[Round] = []
        self.baseline: list[BaselineToken] = []
        # A browser draws only the latest of two updates that arrive within one frame, so each
        # envelope repeats the new items of the one before.
        self._sent = deque([(0, 0)], maxlen=2)

    def envelope(self, phase: str, note: str = "", **extra: Any) -> str:
        """`phase`: "loading", "waiting", "speculative", "baseline", "again" (the race is repeated),
        "done", "stopped", "error" or "opened"; `note` is a sentence for the status line."""
        rounds_from, baseline_from = self._sent[0]
        self._sent.append((len(self.rounds), len(self.baseline)))
        data = {
            "run": self.run,
            "phase": phase,
            "note": note,
            "limit": self.limit,
            "rounds_from": rounds_from,
            "rounds": [asdict(round_) for round_ in self.rounds[rounds_from:]],
            "baseline_from": baseline_from,
            "baseline": [asdict(one) for one in self.baseline[baseline_from:]],
            **extra,
        }
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    def finished(self, trace: Trace, phase: str, note: str) -> str:
        """The last envelope of a run: the whole trace, its verdict and the curve of its costs."""
        self.rounds, self.baseline = [], []
        words = {"verdict": verdict(trace), "curve": curve(trace)}
        return f'{self.envelope(phase, note, **words)[:-1]}, "trace": {to_json(trace)}}}'


def failed(error: Exception) -> str:
    """An envelope that shows one sentence and leaves the rest of the page as it is."""
    return Channel().envelope("error", error_sentence(error))


def opened(text: str) -> str:
    """The envelope of a saved run. Raises BadInput for anything else."""
    trace = from_json(text)
    return Channel(trace.settings.max_new_tokens).finished(trace, "opened", origin(trace))


def run(
    service: Service, running: Running, offer: Offer, visitor: Visitor, given: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the envelopes of a race for the inputs `given`. An error ends it with one sentence."""
    with running.run(visitor.name) as stop:
        try:
            settings, pair = settings_of(given), offer.resolve(models_of(given))
            channel = Channel(settings.max_new_tokens)
            yield channel.envelope("loading", "Starting")
            for state in service.states(pair, stop):
                if state.kind == "loading":
                    yield channel.envelope("loading", while_loading(state.line, state.ahead))
            with service.session(pair, visitor) as session:
                yield channel.envelope("loading", "Reading the question")
                question = str(given["question"] or "")
                options = {"repeat": service.gate.limits.race_seconds, "measured": False}
                events = session.race(question, settings, stop=stop, **options)
                yield from _race(events, channel, stop, service)
        except Exception as error:
            yield failed(error)


def _race(events: Iterator[Any], channel: Channel, stop: Event, service: Service) -> Iterator[str]:
    sent, trace = 0.0, None
    for event in events:
        if isinstance(event, Trace):
            if trace is None and not enough(event, service.gate.limits.race_seconds):
                yield channel.envelope("again", AGAIN, verdict=verdict(event, again=True))
                stop.wait(service.update_seconds)  # until a browser on this machine has drawn it
            trace = event
            continue
        if isinstance(event, Waiting):
            phase, note = "waiting", queue_place(event)
        elif isinstance(event, Round):
            channel.rounds.append(event)
            phase, note = "speculative", "Answering with speculative decoding"
        else:
            channel.baseline.append(event)
            phase, note = "baseline", "Answering again, one token at a time"
        if time.monotonic() - sent >= service.update_seconds:
            yield channel.envelope(phase, note)
            sent = time.monotonic()
    stopped = trace.identical is None
    phase, note = ("stopped", "Stopped.") if stopped else ("done", origin(trace, "Measured"))
    yield channel.finished(trace, phase, note)


def add_endpoint(service: Service, offer: Offer) -> None:
    """Adds /generate, for programs, to the Blocks being built. It answers with `offer.first`."""

    def generate(
        request: gr.Request,
        instruction: str,
        max_new_tokens: int = 100,
        draft_tokens: str = "auto",
        drafter: str = "auto",
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        numerics: str = "exact",
    ) -> dict:  # the type of each item that it yields: Gradio does not read Iterator
        """Answer an instruction with speculative decoding, streamed as it is generated.

        Each item holds the text that is new since the one before in "delta", and the figures so
        far: "tokens", "tokens_per_second" and "acceptance_rate". The last one has "done": true, the
        whole answer in "text" and why it ended in "finish_reason". The settings are those of
        `python -m specdemo run --help`.
        """
        given, stop, pair = locals(), Event(), offer.first
        try:
            if not isinstance(instruction, str):
                raise BadInput(f"instruction is {instruction!r:.60}; it must be text.")
            list(service.states(pair, stop))
            with service.session(pair, visitor_of(request)) as session:
                events = session.answer(instruction, settings_of(given), stop=stop)
                yield from _pieces(events, service)
        except Exception as error:
            raise gr.Error(error_sentence(error), print_exception=False) from error
        finally:
            stop.set()

    gr.api(generate, api_name="generate", concurrency_limit=MAX_EVENTS)


def _pieces(events: Iterator[Any], service: Service) -> Iterator[dict[str, Any]]:
    rounds: list[Round] = []
    sent, sent_at = 0, 0.0
    for event in events:
        if isinstance(event, Waiting):
            continue
        ended = isinstance(event, Trace)
        if not ended:
            rounds.append(event)
            if time.monotonic() - sent_at < service.update_seconds:
                continue
        tokens = sum(len(round_.tokens) for round_ in rounds)
        accepted = sum(round_.accepted for round_ in rounds)
        examined = sum(len(judged(round_)) for round_ in rounds)
        spent = rounds[-1].shown_at - rounds[0].shown_at if rounds else 0.0
        yield {
            "delta": "".join(token.text for round_ in rounds[sent:] for token in round_.tokens),
            "tokens": tokens,
            "tokens_per_second": over(tokens - 1, spent) or 0.0,
            "acceptance_rate": over(accepted, examined),
            "done": ended,
            "text": event.text if ended else "",
            "finish_reason": event.finish_reason if ended else "",
        }
        sent, sent_at = len(rounds), time.monotonic()
