"""A pair that is fetched while a smaller one answers: its progress in one line of the page, and the
change to it, by a click, or by itself where strangers share the server."""

from __future__ import annotations

import html
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gradio as gr

from specdemo.errors import RequestFailed
from specdemo.models.progress import Progress
from specdemo.models.registry import Pair
from specdemo.ui import PRIVATE
from specdemo.ui.choice import Offer
from specdemo.ui.inputs import AUTO
from specdemo.ui.service import Service
from specdemo.ui.wording import error_sentence

BUTTONS = {"fetching": "Pause", "paused": "Resume", "failed": "Try again", "ready": "Use it now"}
"""What a click does, by the kind of state. The other two have no button."""

RETRY_SECONDS = 300.0
"""After which a shared server, where nobody may click, tries again to fetch what it could not."""


@dataclass(frozen=True, slots=True)
class State:
    """`kind` is one of BUTTONS, "changing" or "here"; `error` is the sentence of "failed"."""

    kind: str
    progress: Progress | None = None
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
            after = State("failed", error=error_sentence(error))
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

        # The first answer needs the processor that a quick download would take.
        while (told := self._service.health())["status"] == "loading" or told["preparing"]:
            if stop.wait(0.2):
                return

        def report(progress: Progress) -> None:
            with self._lock:
                if stop.is_set():
                    raise RequestFailed("Paused.")
                self.state = State("fetching", progress)

        fetch_pair(self.pair, self._offer.first, report)

    def _change(self) -> None:
        """From the moment on in which the session is there, AUTO names this pair."""
        first = self._offer.first
        adopt = partial(self._offer.adopt, self.pair)
        self._service.exchange(first, replace(first, pair=self.pair.name), adopt)
        adopt()

    @property
    def line(self) -> str:
        """HTML of what is going on."""
        title, kind, progress, bar = self.pair.title, self.state.kind, self.state.progress, ""
        said = {
            "fetching": f"Fetching {title}",
            "paused": f"Paused: {title}",
            "failed": f"{title} is not here yet. {self.state.error}",
            "ready": f"{title} is here.",
            "changing": f"Loading {title}; questions are answered meanwhile.",
            "here": f"{title} answers from now on.",
        }[kind]
        if progress is not None and kind in ("fetching", "paused"):
            said += f". {progress.line}"
            share = progress.done / progress.total if progress.total else 0
            bar = f'<progress aria-label="Fetched" value="{share:.3f}"></progress>'
        return f"<span>{html.escape(said)}</span>{bar}"


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
