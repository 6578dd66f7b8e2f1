"""Turns what a session yields into page updates: a run, the loading line, a saved trace."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, RequestFailed
from specdemo.settings import ModelChoice, Settings
from specdemo.trace import MAX_JSON_BYTES, BaselineToken, Trace, from_json
from specdemo.ui import envelopes
from specdemo.ui.envelopes import Channel
from specdemo.ui.limits import Visitor
from specdemo.ui.runs import Finished, Running
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence, queue_place

if TYPE_CHECKING:
    from specdemo.engine.handle import Waiting

UPDATE_EVERY, SLOWEST_UPDATE = 0.2, 0.5
"""Seconds between two envelopes for one user, and at most. The script shows each token at the pace
at which it was made; fewer envelopes leave more of the processor to the models."""

PHASES = {
    Round: ("speculative", "Answering with speculative decoding"),
    BaselineToken: ("plain", "Answering again, one token at a time"),
}


@dataclass(frozen=True, slots=True)
class Update:
    """One step of a run for the page; the last one has the trace, unless there was an error."""

    envelope: str
    trace: Trace | None = None


class Energy:
    """Joules per token of one run, from its first token to its last, where the machine tells them.
    `make_meter` makes a `bench.energy.Meter`."""

    def __init__(self, make_meter: Callable[[], Any]):
        self._make_meter = make_meter
        self._meter: Any = None
        self._joules: float | None = None
        self._tokens = 0

    def count(self, event: Round | BaselineToken) -> None:
        if self._meter is None:
            self._meter = self._make_meter()
            return
        self._tokens += len(event.tokens) if isinstance(event, Round) else 1
        self._joules = self._meter.joules()

    @property
    def per_token(self) -> float | None:
        return None if self._joules is None or not self._tokens else self._joules / self._tokens


def run(
    service: Service,
    running: Running,
    finished: Finished,
    visitor: Visitor | None,
    question: str,
    pair: ModelChoice,
    settings: Settings,
) -> Iterator[Update]:
    """Answer and baseline, update by update. An error ends it with one sentence."""
    channel = Channel(limit=settings.max_new_tokens, question=question)
    with running.run(visitor and visitor.name, "race") as stop:
        try:
            yield Update(channel.envelope("loading", "Starting"))
            for state in service.states(pair, stop):
                if state.kind == "failed":
                    raise RequestFailed(state.text)
                if state.kind == "loading":
                    note = f"{state.line}. Your question is next."
                    yield Update(channel.envelope("loading", note))
            if stop.is_set():
                raise RequestFailed("Stopped before the models were ready.")
            with service.session(pair, visitor) as session:
                for update in _race(session, channel, settings, stop, service):
                    if update.trace is not None:
                        finished.put(channel.run, update.trace)
                    yield update
        except Exception as error:
            yield Update(envelopes.error(error_sentence(error)))


def _race(
    session: Any, channel: Channel, settings: Settings, stop: Event, service: Service
) -> Iterator[Update]:
    from specdemo.bench.energy import Meter

    # A session that runs elsewhere has a meter of its own.
    energy = {kind: Energy(getattr(session, "meter", Meter)) for kind in PHASES}
    places: deque[Waiting] = deque(maxlen=1)
    events = session.race(channel.question, settings, stop=stop, on_wait=places.append)
    yield Update(channel.envelope("speculative", "Reading the question"))
    # The first event is awaited in a thread, so that the place in the queue can be shown meanwhile.
    pool = ThreadPoolExecutor(1)
    first = pool.submit(next, events)
    pool.shutdown(wait=False)
    while not wait([first], timeout=1.0).done:
        if places:
            yield Update(channel.envelope("waiting", queue_place(places.pop())))
    sent = 0.0
    for event in chain([first.result()], events):
        if isinstance(event, Trace):
            break
        channel.add(event)
        energy[type(event)].count(event)
        if time.monotonic() - sent >= min(UPDATE_EVERY * service.users, SLOWEST_UPDATE):
            yield Update(channel.envelope(*PHASES[type(event)]))
            sent = time.monotonic()
    if event.finish_reason == "cancelled":
        envelope = channel.finished(event, "stopped", "Stopped.")
    elif stop.is_set():
        envelope = channel.finished(event, "stopped", "Stopped during the baseline.")
    else:
        joules = {PHASES[kind][0]: one.per_token for kind, one in energy.items()}
        known = joules if any(value is not None for value in joules.values()) else None
        envelope = channel.finished(event, "done", joules=known)
    yield Update(envelope, event)


def loading(service: Service) -> Iterator[str]:
    """Text for the line under the title, until the pair is ready or has failed. Starts nothing."""
    shown = None
    while True:
        state = service.state
        if state != shown:
            shown = state
            prefix = {"loading": "Loading. ", "ready": "", "failed": "Not available. "}[state.kind]
            yield prefix + state.line
        if state.kind != "loading":
            return
        time.sleep(0.2)


def open_trace(path: str | None) -> Update:
    """Shows a saved trace, or says in one sentence what is wrong with the file."""
    try:
        if not path:
            raise BadInput("No file was chosen.")
        if Path(path).stat().st_size > MAX_JSON_BYTES:
            raise BadInput(f"The trace is larger than {MAX_JSON_BYTES // 1_000_000} MB.")
        trace = from_json(Path(path).read_bytes())
    except BadInput as error:
        return Update(envelopes.error(str(error)))
    except OSError:
        return Update(envelopes.error("The file could not be read."))
    title = " ".join(trace.instruction.split())
    title = title if len(title) <= 80 else title[:79] + "…"
    return Update(envelopes.opened(trace, f"A saved run: {title}"), trace)
