"""Turns what a session yields into page updates: a run, the loading line, a saved trace."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdemo.trace import MAX_JSON_BYTES, Trace, BadInput, from_json
from specdemo.ui import controls, energy, wire
from specdemo.ui.pump import Pump, update_every
from specdemo.ui.service import Service, sentence

if TYPE_CHECKING:
    from specdemo.engine.scheduler import Waiting


class Runs:
    """The stop signals of the runs in progress, by browser session, so that Stop reaches the right one."""

    def __init__(self):
        self._stops: dict[str, threading.Event] = {}

    def begin(self, session: str | None) -> threading.Event:
        self.stop(session)
        event = threading.Event()
        if session:
            self._stops[session] = event
        return event

    def stop(self, session: str | None) -> None:
        event = self._stops.get(session or "")
        if event is not None:
            event.set()

    def leave(self, session: str | None) -> None:
        """The browser session has ended: stop its race and its benchmark."""
        self.stop(session)
        self.stop(f"benchmark {session}")

    def end(self, session: str | None, event: threading.Event) -> None:
        if session and self._stops.get(session) is event:
            del self._stops[session]


@dataclass(frozen=True, slots=True)
class Update:
    """One step of a run for the page. The `final` one ends it, with a trace unless there was an error."""

    envelope: str
    trace: Trace | None = None
    final: bool = False


def run(service: Service, runs: Runs, session_id: str | None, values: tuple) -> Iterator[Update]:
    """One race, update by update. The last one is final, whatever happens."""
    run_id = uuid.uuid4().hex[:16]
    try:
        request = controls.parse(*values)
    except controls.InputError as error:
        yield Update(wire.error(run_id, str(error)), final=True)
        return
    stop = runs.begin(session_id)
    channel = wire.Channel(run_id, request.settings.max_new_tokens, request.question)
    try:
        yield from _load_and_race(service, channel, request, stop)
    except Exception as error:
        yield Update(wire.error(run_id, sentence(error)), final=True)
    finally:
        stop.set()  # also when the browser has gone: the thread that decodes must not go on for nobody
        runs.end(session_id, stop)


def _load_and_race(service: Service, channel: wire.Channel, request: controls.Request, stop: threading.Event):
    yield Update(channel.envelope("loading", "Starting"))
    for state in service.states(request.pair, stop):
        if state.kind == "failed":
            yield Update(wire.error(channel.run, state.text), final=True)
            return
        if state.kind == "loading":
            yield Update(channel.envelope("loading", loading_line(state) + ". Your question is next."))
    if stop.is_set():
        yield Update(wire.error(channel.run, "Stopped before the models were ready."), final=True)
        return
    with service.session(request.pair) as session:
        trace, spent = None, energy.tallies(session)
        for ahead in session.turn(stop):
            yield Update(channel.envelope("waiting", _ahead(ahead) + " ahead; comparisons run one at a time here"))
        yield Update(channel.envelope("speculative", "Reading the question"))
        places: deque[Waiting] = deque(maxlen=1)

        def first():
            events = session.answer(request.question, request.settings, stop=stop, on_wait=places.append)
            return spent[0].watch(events)

        for batch in Pump(first, stop).batches(update_every(service.users)):
            if places and not batch:
                yield Update(channel.envelope("waiting", waiting_line(places.pop())))
            trace = _last_trace(batch) or trace
            channel.rounds += [event for event in batch if not isinstance(event, Trace)]
            if batch and trace is None:
                yield Update(channel.envelope("speculative", "Answering with the draft's help"))
        if trace.finish_reason == "cancelled" or stop.is_set():
            yield Update(channel.finished(trace, "stopped", "Stopped."), trace, final=True)
            return
        yield Update(channel.envelope("plain", "Answering again, without the draft"))
        speculative, trace = trace, None

        def second():
            return spent[1].watch(session.baseline(speculative, stop=stop))

        for batch in Pump(second, stop).batches(update_every(service.users)):
            trace = _last_trace(batch) or trace
            channel.plain += [event for event in batch if not isinstance(event, Trace)]
            if batch and trace is None:
                yield Update(channel.envelope("plain", "Answering again, without the draft"))
    if stop.is_set():
        kept = trace or speculative
        yield Update(channel.finished(kept, "stopped", "Stopped during plain decoding."), kept, final=True)
    else:
        yield Update(channel.finished(trace, "done", "", joules=energy.figures(*spent)), trace, final=True)


def _last_trace(batch: list) -> Trace | None:
    return batch[-1] if batch and isinstance(batch[-1], Trace) else None


def waiting_line(waiting: Waiting) -> str:
    """A place in the queue in words, with the wait that the last requests let expect."""
    line = "Next in the queue" if waiting.place <= 1 else f"In the queue, {_ahead(waiting.place - 1)} ahead"
    if waiting.seconds is None:
        return line
    seconds = max(1, round(waiting.seconds))
    return line + (f"; about {seconds} s" if seconds < 90 else f"; about {round(seconds / 60)} minutes")


def _ahead(count: int) -> str:
    return f"{count} question{'' if count == 1 else 's'}"


def loading_line(state) -> str:
    percent = "" if state.fraction is None else f" ({state.fraction:.0%})".replace("%", " %")
    return state.text + percent


def loading(service: Service) -> Iterator[str]:
    """Text for the line under the title, until the pair is ready or has failed. Starts nothing."""
    shown = None
    while True:
        state = service.state
        line = {"loading": "Loading. ", "ready": "", "failed": "Not available. "}[state.kind] + loading_line(state)
        if line != shown:
            shown = line
            yield line
        if state.kind != "loading":
            return
        time.sleep(0.2)


def open_trace(path: str | None) -> tuple[str, Trace | None]:
    """The envelope that shows a saved trace, and the trace; or one sentence on what is wrong with the file."""
    run_id = uuid.uuid4().hex[:16]
    if not path:
        return wire.error(run_id, "No file was chosen."), None
    try:
        if Path(path).stat().st_size > MAX_JSON_BYTES:
            raise BadInput(f"The trace is larger than {MAX_JSON_BYTES // 1_000_000} MB; no run writes so much.")
        trace = from_json(Path(path).read_bytes())
    except BadInput as error:
        return wire.error(run_id, str(error)), None
    except (OSError, UnicodeDecodeError):
        return wire.error(run_id, "The file could not be read; choose a trace that this demo saved."), None
    return wire.opened(trace, f"A saved run: {_short(trace.instruction)}"), trace


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:79] + "…"
