"""A pair that is fetched while a smaller one answers: its progress in one line of the page, and the
change to it, by a click, or by itself where strangers share the server."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr
from tqdm import tqdm

from specdemo.errors import RequestFailed
from specdemo.models.progress import Progress, size
from specdemo.models.registry import Pair
from specdemo.ui import PRIVATE
from specdemo.ui.choice import Offer
from specdemo.ui.inputs import AUTO
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence

if TYPE_CHECKING:
    from specdemo.session import Session

BUTTONS = {"fetching": "Pause", "paused": "Resume", "failed": "Try again", "ready": "Use it now"}
"""What a click does, by the kind of state. The other two have no button."""

RETRY_SECONDS = 300.0
"""After which a shared server, where nobody may click, tries again to fetch what it could not."""

WINDOW = 100
"""Reports, of which there are ten a second at most, that the rate is taken from."""


@dataclass(frozen=True, slots=True)
class State:
    """`kind` is one of BUTTONS, "changing" or "here"; `rate` is in bytes a second, of late; `error`
    is the sentence of "failed"."""

    kind: str
    progress: Progress | None = None
    rate: float = 0.0
    error: str = ""


class Arrival:
    """The pair `offer.later` on its way. Once it is here and taken, AUTO names it."""

    def __init__(self, service: Service, offer: Offer):
        self._service, self._offer = service, offer
        self.pair: Pair = offer.later
        self.shared = bool(offer.fixed)
        self.state = State("paused")
        self._lock = threading.RLock()
        self._stop = threading.Event()

    def start(self, kind: str = "fetching") -> None:
        """Fetch the pair in a thread, or change to it."""
        with self._lock:
            self._stop = threading.Event()  # a thread that was stopped may take a while to end
            self.state = replace(self.state, kind=kind)
            threading.Thread(target=self._run, args=[kind, self._stop], daemon=True).start()

    def press(self, button: str) -> None:
        """Do what a button says, if it still says so."""
        with self._lock:
            if BUTTONS.get(self.state.kind) != button:
                return
            if button == "Pause":
                self._stop.set()
                self.state = replace(self.state, kind="paused")
            else:
                self.start("changing" if button == "Use it now" else "fetching")

    def _run(self, kind: str, stop: threading.Event) -> None:
        changing = kind == "changing"
        try:
            if changing:
                self._change()
            else:
                self._fetch(stop)
            after = State("here" if changing else "ready")
        except Exception as error:
            after = replace(self.state, kind="failed", error=error_sentence(error))
        with self._lock:
            if stop.is_set():
                return
            self.state = after
        print(f"{self.pair.name}: {after.error or after.kind}", file=sys.stderr, flush=True)
        if self.shared and not changing:
            if after.error:
                time.sleep(RETRY_SECONDS)
            self.start("fetching" if after.error else "changing")

    def _fetch(self, stop: threading.Event) -> None:
        from specdemo.models.load import fetch_pair

        seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)

        def report(progress: Progress) -> None:
            seen.append((time.monotonic(), progress.done))
            seconds, gained = (last - first for first, last in zip(seen[0], seen[-1], strict=True))
            rate = max(gained, 0) / seconds if seconds > 3 else 0.0
            with self._lock:
                if stop.is_set():
                    raise RequestFailed("Paused.")
                self.state = State("fetching", progress, rate)

        fetch_pair(self.pair, self._offer.first, report)

    def _change(self) -> None:
        """From the moment on in which the session is there, AUTO names this pair."""

        def opened() -> Session:
            chosen = replace(self._offer.first, pair=self.pair.name)
            session = self._offer.open_session(chosen, lambda line: None)
            self._offer.adopt(self.pair)
            return session

        self._service.exchange(self._offer.first, opened)
        self._offer.adopt(self.pair)

    @property
    def line(self) -> str:
        """HTML of what is going on."""
        state, title = self.state, self.pair.title
        said = {
            "fetching": f"Fetching {title}",
            "paused": f"Paused: {title}",
            "failed": f"{title} is not here yet. {state.error}",
            "ready": f"{title} is here.",
            "changing": f"Loading {title}; questions are answered meanwhile.",
            "here": f"{title} answers from now on.",
        }[state.kind]
        done = state.progress if state.kind in ("fetching", "paused") else None
        if done is None:
            return f"<span>{html.escape(said)}</span>"
        told = done.text
        if done.total:
            told = f"{size(done.done)} of {size(done.total)}"
            if state.rate and state.kind == "fetching":
                left = tqdm.format_interval((done.total - done.done) / state.rate)
                told += f", {state.rate / 1e6:.1f} MB/s, {left} left"
        bar = f'<progress aria-label="Fetched" value="{done.fraction or 0:.3f}"></progress>'
        return f"<span>{html.escape(f'{said}, {told}')}</span>{bar}"


class Strip:
    """The line on the page, with a button where the page is its owner's."""

    def __init__(self, service: Service, offer: Offer, arrival: Arrival):
        self._service, self._offer, self._arrival = service, offer, arrival
        with gr.Row(elem_id="sd-arrival"):
            self._line = gr.HTML(arrival.line, elem_classes="sd-arrival")
            button = {"size": "sm", "scale": 0, "visible": not arrival.shared}
            self._button = gr.Button(BUTTONS["fetching"], **button)
        self._timer = gr.Timer(5 if arrival.shared else 1)

    def connect(self, blocks: gr.Blocks, status: gr.HTML, pair: gr.Dropdown) -> None:
        """`status` says which pair answers; `pair` is set to AUTO by the click that takes it."""
        shown = [self._line, self._button, self._timer, status, pair]
        now = {"queue": False, **PRIVATE}
        gr.on([blocks.load, self._timer.tick], self._look, None, shown, **now)
        if not self._arrival.shared:
            self._button.click(self._press, self._button, shown, **now)

    def _press(self, button: str) -> list[Any]:
        self._arrival.press(button)
        taken = gr.update(value=AUTO) if self._arrival.state.kind == "changing" else gr.skip()
        return [*self._look()[:-1], taken]

    def _look(self) -> list[Any]:
        arrival, label = self._arrival, BUTTONS.get(self._arrival.state.kind)
        button = gr.update(visible=False)
        if label and not arrival.shared:
            look = "primary" if label == BUTTONS["ready"] else "secondary"
            button = gr.update(value=label, visible=True, variant=look)
        rest = [gr.skip()] * 3
        if arrival.state.kind == "here":
            status = html.escape(self._service.state.line)
            rest = [gr.Timer(active=False), status, gr.update(choices=self._offer.surveyed_pairs())]
        return [arrival.line, button, *rest]
