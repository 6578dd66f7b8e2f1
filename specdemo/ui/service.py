"""Holds the loaded pair: opens it in a background thread, and says how far that is. Answers nothing itself."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdemo.metrics import Gauges
from specdemo.ui.visitors import LIMITS, Limits, Refused, Visitor, Visitors, Watched, visitor_now

if TYPE_CHECKING:
    from specdemo.session import Session

log = logging.getLogger(__name__)

Report = Callable[[str, float | None], None]
Opener = Callable[[str, Report], "Session"]


@dataclass(frozen=True, slots=True)
class State:
    """What the service is doing. `kind` is "loading", "ready" or "failed"; `fraction` 0 to 1."""

    kind: str
    pair: str
    text: str
    fraction: float | None = None


def sentence(error: BaseException) -> str:
    """One sentence for the page: the message of an error made for users, without paths of this machine, else what
    failed (the log has the rest)."""
    from specdemo.models.errors import ZooError

    kind = type(error).__name__
    if isinstance(error, (ZooError, Refused)) or kind in ("RequestError", "EngineError", "Busy"):
        return _PATH.sub(r"\1", str(error))
    if kind == "PairGone":
        return "Another pair is being loaded for somebody; ask again in a moment."
    for name, words in _SENTENCES.items():
        if any(base.__name__ == name for base in type(error).__mro__):
            log.error("A visitor was told only a sentence of this.", exc_info=error)
            return words
    log.error("The page shows only a sentence of this.", exc_info=error)
    return f"Something went wrong inside ({type(error).__name__}); the terminal that runs this page has the details."


_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+)+/([\w.@+-]+)")

_SENTENCES = {
    "ModelError": "The model could not be run for this answer, which is lost; others go on. Please ask again.",
    "CacheFull": "The memory for contexts was full, and this answer had to be given up; please ask again.",
    "MemoryError": "The machine is out of memory; ask for a shorter answer, or again in a moment.",
    "OSError": "A file could not be written or read on the server: its disk may be full.",
}


class PairGone(LookupError):
    """The pair that a visitor had chosen is no longer the loaded one."""


class _Superseded(Exception):
    """Somebody asked for another pair before this one was ready, and nobody waits for this one any more."""


class Service:
    """One pair at a time. Loading a second one first waits until nobody uses the first, then closes it.

    A pair that is still loading gives way as soon as nobody waits for it: who wants the small pair need not sit
    through the download of a large one. A "pair" is whatever the opener takes; it is compared and shown, no more.
    """

    def __init__(self, pair: str, opener: Opener, limits: Limits = LIMITS):
        self._opener = opener
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._users = 0
        self._turn = 0
        self._waiting: Counter[str] = Counter()
        self.state = State("loading", pair, "Getting the models ready")
        self.visitors = Visitors(limits, self._gauges)

    def start(self, pair: str | None = None) -> None:
        """Begin loading the first pair, or `pair`, unless somebody has asked for one already. Not done on creation:
        the page comes up faster without it."""
        with self._changed:
            if not self._turn:
                self._begin(pair or self.state.pair)

    def _set(self, state: State, turn: int) -> None:
        with self._changed:
            if turn != self._turn:
                raise _Superseded
            self.state = state
            self._changed.notify_all()

    def _begin(self, pair: str) -> None:
        with self._changed:
            self._turn += 1
            self._set(State("loading", pair, "Getting the models ready"), self._turn)
            threading.Thread(target=self._load, args=(pair, self._turn), name=f"load-{pair}", daemon=True).start()

    def _load(self, pair: str, turn: int) -> None:
        session = None
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._users == 0 or turn != self._turn)
                if turn != self._turn:  # this thread was late, or waited too long: the models are another's now
                    raise _Superseded
                old, self._session = self._session, None
            if old is not None:
                old.close()
            session = self._opener(pair, lambda text, part: self._set(State("loading", pair, text, part), turn))
            draft = session.info.draft or "prompt lookup (no draft model)"
            with self._changed:
                self._set(State("ready", pair, f"Ready: {session.info.target}, guesses by {draft}"), turn)
                self._session = session
        except _Superseded:
            if session is not None:
                session.close()
        except Exception as error:
            with contextlib.suppress(_Superseded):
                self._set(State("failed", pair, sentence(error)), turn)

    def states(self, pair: str, stop: threading.Event | None = None) -> Iterator[State]:
        """The states on the way to `pair` being ready, the last one "ready" or "failed"; starts loading if need be.

        Ends early, with a "loading" state, when `stop` is set.
        """
        seen = None
        with self._changed:
            self._waiting[pair] += 1
            if self.state.pair == pair and (self.state.kind == "failed" or not self._turn):
                self._begin(pair)
        try:
            while True:
                with self._changed:
                    # Who waits for another pair has seen it ready, and begun with it, before it gives way.
                    if self.state.pair != pair and not self._waiting[self.state.pair]:
                        self._begin(pair)
                    state = self.state
                if state != seen:
                    seen = state
                    yield state
                if state.pair == pair and state.kind != "loading" or stop is not None and stop.is_set():
                    return
                with self._changed:
                    self._changed.wait_for(lambda state=state: self.state != state, timeout=0.25)
        finally:
            with self._changed:
                self._waiting[pair] -= 1

    @contextmanager
    def session(self, pair: str, visitor: Visitor | None = None) -> Iterator[Watched]:
        """The session of a ready pair for one request of a visitor (of the request being handled, by default), kept
        open while in use. Raises Refused when a limit is reached, PairGone when another pair took its place."""
        with self.visitors.request(visitor or visitor_now()):
            with self._changed:
                if self._session is None or self.state.pair != pair or self.state.kind != "ready":
                    raise PairGone(pair)
                self._users += 1
                session = self._session
            watched = Watched(session, self.visitors)
            try:
                yield watched
            finally:
                watched.leave()
                with self._changed:
                    self._users -= 1
                    self._changed.notify_all()

    def _gauges(self) -> Gauges:
        session = self._session
        if session is None:
            return Gauges()
        load = session.load
        blocks = tuple((name, use.used, use.kept, use.limit) for name, use in session.cache_blocks().items())
        return Gauges(0, load.active, load.waiting, load.restarts, blocks)

    def health(self) -> dict[str, object]:
        """What a monitor asks for: "status" is "ready", "loading" or "failed"."""
        now = self.visitors.gauges()
        return {
            "status": self.state.kind,
            "visitors": now.visitors,
            "active": now.active,
            "queue": now.waiting,
            "restarts": now.restarts,
            "cache_blocks": {
                name: {"used": used, "kept": kept, "limit": limit} for name, used, kept, limit in now.blocks
            },
        }

    @property
    def users(self) -> int:
        return self._users
