"""A session that answers from a script, for tests of the API: real tokenizer and templates, no model."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

from specdemo.engine.scheduler import EngineError, Load
from specdemo.trace import BaselineToken, DraftToken, EmittedToken, PairInfo, Round, Settings, Trace
from specdemo.serving.backend import LocalBackend
from specdemo.serving.generation import Engine
from specdemo.serving.local import LocalServer, bound_socket

LINES = ("One ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ")


class ScriptedSession:
    """Answers with `script` over and over, a round a piece, up to max_new_tokens; a round takes `seconds`.

    `prompts` are the prompts it was given; `active` how many answers are being made. An answer to a prompt that holds
    "CRASH" fails after two rounds, the first one with "ONCE" as an engine fails. While `held` is set, no round is made.
    """

    def __init__(self, script=LINES, seconds: float = 0.0):
        self.info = PairInfo("scripted", "Scripted-1", None, "abc123", "")
        self.context_limit = 512
        self.script, self.seconds = script, seconds
        self.prompts: list[tuple[int, ...] | None] = []
        self.settings: list[Settings] = []
        self.active = 0
        self.rounds_made = 0
        self.stumbled = False
        self.held = threading.Event()

    def answer(
        self, instruction, settings, *, stop=None, prompt=None, certify=True, on_wait=None
    ) -> Iterator[Round | Trace]:
        if settings.top_p == 0.123:
            raise ValueError("This is not to be had.")
        self.prompts.append(prompt)
        self.settings.append(settings)
        return self._answer(instruction, settings, stop or threading.Event(), prompt)

    def _answer(self, instruction, settings, stop, prompt):
        rounds: list[Round] = []
        reason = "length"
        self.active += 1
        try:
            for at in range(settings.max_new_tokens):
                while self.held.is_set() and not stop.is_set():
                    time.sleep(0.005)
                if stop.is_set():
                    reason = "cancelled"
                    break
                if "CRASH" in instruction and at == 2:
                    raise RuntimeError("kernel panic in row 7")
                if "ONCE" in instruction and at == 2 and not self.stumbled:
                    self.stumbled = True
                    raise EngineError("The engine stumbled; ask again.")
                time.sleep(self.seconds)
                rounds.append(self._round(at))
                self.rounds_made += 1
                yield rounds[-1]
            yield Trace(instruction, len(prompt or (1, 2, 3)), 0, self.info, settings, 0.01, tuple(rounds), reason, 0.1,
                        0.0)  # fmt: skip
        finally:
            self.active -= 1

    def _round(self, at: int) -> Round:
        text = self.script[at % len(self.script)]
        if at == 0:
            return Round((), EmittedToken(at + 1, "first", 0.5, text), 0.0, 0.01, 0.01)
        if at % 2:
            return Round((DraftToken(at + 1, 0.5, 0.5, True, text=text),), None, 0.001, 0.01, 0.01 * at + 0.01)
        wrong = DraftToken(99, 0.5, 0.1, False, text="no")
        return Round((wrong,), EmittedToken(at + 1, "correction", 0.9, text), 0.001, 0.01, 0.01 * at + 0.01)

    def baseline(self, trace, *, stop=None, on_wait=None):
        shown = tuple(BaselineToken(id, 0.02 * at, "x") for at, id in enumerate(trace.token_ids))
        yield from shown
        yield dataclasses.replace(trace, identical=True)

    @property
    def load(self) -> Load:
        return Load(self.active, 0, 0, 0, 0, 0, 0)

    def cache_blocks(self) -> dict:
        return {}

    def close(self) -> None:
        pass


@contextlib.contextmanager
def served(
    session, loaded, *, key: str | None = None, ongoing: int = 4, waiting: int = 2, longest: int = 400, load=None
):
    """A running server over a session; `load` replaces how its engine is made."""

    def engine(report) -> Engine:
        return Engine(session, loaded, longest=longest, created=1_700_000_000)

    backend = LocalBackend(load or engine, ongoing=ongoing, waiting=waiting)
    server = LocalServer(backend, bound_socket("127.0.0.1", 0), key=key, default_limit=8, drain_seconds=5)
    backend.start().join(0 if load else 10)
    server.start()
    try:
        yield server
    finally:
        server.stop()
