"""Fetches a larger pair while a smaller one answers, shows its progress, and changes to it: after a
click, or at once where strangers share the server."""

import html
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gradio as gr

from specdemo.errors import RequestFailed
from specdemo.machine.terminal import Progress
from specdemo.pairs.loading import fetch_pair
from specdemo.server.metrics import announce
from specdemo.server.page import PRIVATE
from specdemo.server.page.model_menu import ModelMenu
from specdemo.server.page.service import Service
from specdemo.server.page.wording import error_sentence

RETRY_SECONDS = 300.0  # until a shared server, which has no button, tries a failed fetch again

STATES = {
    "fetching": ("Pause", "Fetching {}"),
    "paused": ("Resume", "Paused: {}"),
    "failed": ("Try again", "{} could not be fetched"),
    "ready": ("Use it now", "{} is here"),
    "changing": ("", "Loading {}; questions are answered meanwhile"),
    "here": ("", "{} answers from now on"),
}
"""By state: the label of the button, "" for no button, and the text of the line."""


class BackgroundDownload:
    """Fetches the pair `menu.later`, which must not be None, and changes to it. `error` says why
    the state is "failed"."""

    def __init__(self, service: Service, menu: ModelMenu):
        self._service, self._menu = service, menu
        assert menu.later is not None
        self.pair, self.shared = menu.later, bool(menu.fixed)
        self.state, self.error = "paused", ""
        self.progress: Progress | None = None
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None  # None while it is paused

    def start(self, state: str = "fetching") -> None:
        """Fetch the pair in a thread, or change to it."""
        work = self._fetch if state == "fetching" else self._change
        with self._lock:
            self.state = state
            self._thread = threading.Thread(target=self._run, args=[work], daemon=True)
            self._thread.start()

    def press(self, button: str) -> None:
        """Do what the label `button` says, if the button still has that label."""
        with self._lock:
            if STATES[self.state][0] != button:
                return
            if button == "Pause":
                self.state, self._thread = "paused", None
            else:
                self.start("changing" if button == "Use it now" else "fetching")

    def _run(self, work: Callable[[], str]) -> None:
        try:
            state, error = work(), ""
        except Exception as failure:
            state, error = "failed", error_sentence(failure)
        with self._lock:
            if self._thread is not threading.current_thread():
                return
            self.state, self.error = state, error
        announce(f"{self.pair.name}: {error or state}", sys.stderr)
        if self.shared and work == self._fetch:
            if error:
                time.sleep(RETRY_SECONDS)
            self.start("fetching" if error else "changing")

    def _fetch(self) -> str:
        thread = threading.current_thread()

        def report(progress: Progress | None) -> None:  # called in several threads
            if self._thread is not thread:
                raise RequestFailed("Paused.")
            self.progress = progress

        # A fast download would take processor time from the first answer.
        service = self._service
        while service.answering.kind == "loading" or service.activity.preparing:
            report(self.progress)
            time.sleep(0.2)
        fetch_pair(replace(self.pair, choice=self._menu.first), report)
        return "ready"

    def _change(self) -> str:
        chosen = replace(self._menu.first, pair=self.pair.name)
        if self._service.answering.kind == "failed":  # then questions wait for this pair
            self._menu.first = chosen
        self._service.load(chosen).result()
        return "here"

    @property
    def line(self) -> str:
        """The state and the progress, as HTML."""
        text, bar = STATES[self.state][1].format(self.pair.title) + ".", ""
        if self.state == "failed":
            text += " " + re.sub(r" \(.*?\)|;.*", "", self.error)  # the log has all of it
        elif self.progress and self.state in ("fetching", "paused"):
            text += f" {self.progress.line}"
            share = self.progress.done / self.progress.total if self.progress.total else 0
            bar = f'<progress aria-label="Fetched" value="{share:.3f}"></progress>'
        return f"<span>{html.escape(text)}</span>{bar}"

    def lay_out(self) -> None:
        """Adds the line to the layout being built, with a button unless the server is shared."""
        with gr.Row(elem_id="sd-arrival"):
            shown = gr.HTML(self.line, elem_classes="sd-arrival")
            self._button = gr.Button("Pause", size="sm", scale=0, visible=not self.shared)
        self._shown = [shown, self._button, gr.Timer(5 if self.shared else 1)]

    def connect(self, blocks: gr.Blocks, status: gr.HTML) -> None:
        """Connects the events. `status` then shows which pair answers."""
        shown, now = [*self._shown, status], {"queue": False, **PRIVATE}
        gr.on([blocks.load, self._shown[-1].tick], self._look, None, shown, **now)
        if not self.shared:
            self._button.click(self._press, self._button, shown, **now)

    def _press(self, button: str) -> list[Any]:
        self.press(button)
        return self._look()

    def _look(self) -> list[Any]:
        label = STATES[self.state][0]
        button = gr.update(visible=bool(label) and not self.shared, value=label)
        rest = [gr.skip()] * 2
        if self.state == "here":
            status = html.escape(self._service.state.line)
            rest = [gr.Timer(active=False), status]
        return [self.line, button, *rest]
