"""A submitted request: what the scheduler knows of it, and what is iterated over for its events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any

from .drafters import Forward, Reply
from .open import Model

COLLECT_EVERY, MOST_BETWEEN = 0.02, 0.16
"""Seconds between two looks of a consumer that has caught up, for each active request, and at most:
woken for each round, it would contend for the GIL just when the engine's thread comes back from an
inference."""

END = object()

Work = Generator[Any, Reply | None, Any]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue (1 is next, 0 that the models are being prepared), and the seconds that
    may take, None while nothing is known about that."""

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler is doing: requests `active` and `waiting`, how often its thread had to
    begin anew, and whether work is left for when there are no requests."""

    active: int = 0
    waiting: int = 0
    restarts: int = 0
    preparing: bool = False


@dataclass(eq=False, slots=True)
class Handle:
    """A submitted request. After its `events`, `result` is what it returned, or it was `stopped`.

    Of other requests, `others` are active now, `most_others` were at once. `blocks` are the most
    cache blocks it can come to hold of each model; `start` gives its generator `work`, None until
    it is admitted, which waits for the forward `pending`.
    """

    start: Callable[[], Work]
    models: Mapping[str, Model]
    blocks: Mapping[Model, int]
    stop: threading.Event
    merged_tokens: int
    waiting: Callable[[Handle], Waiting]
    queue: SimpleQueue = field(default_factory=SimpleQueue)
    done: threading.Event = field(default_factory=threading.Event)
    work: Work | None = None
    pending: Forward | None = None
    others: int = 0
    most_others: int = 0
    served_at: int = 0
    admitted_at: float = 0.0
    error: BaseException | None = None
    stopped: bool = False
    result: Any = None

    def waits_for(self, draft: bool) -> bool:
        """Whether its next forward is the draft model's, or else the target model's."""
        return self.pending is not None and (self.pending.model == "draft") == draft

    @property
    def model(self) -> Model:
        return self.models[self.pending.model]

    @property
    def tokens(self) -> int:
        """Tokens that its waiting forward runs."""
        return len(self.pending.run.tokens)

    def events(
        self, on_wait: Callable[[Waiting], None] | None = None, every: float = 1.0
    ) -> Iterator[Any]:
        """What the request yields; raises what it raised. While it waits to be admitted, `on_wait`
        is called about `every` seconds.

        Once `stop` is set the rest is dropped; leaving the iteration sets it. The request has then
        given back all it held.
        """
        collected = False
        try:
            while True:
                if collected and self.queue.empty():
                    sleep(min(COLLECT_EVERY * (1 + self.others), MOST_BETWEEN))
                try:
                    event = self.queue.get(timeout=every)
                except Empty:
                    if on_wait is not None and self.work is None and not self.done.is_set():
                        on_wait(self.waiting(self))
                    continue
                collected = True
                if event is END:
                    break
                if self.stop.is_set():
                    self.stopped = True
                else:
                    yield event
        finally:
            if not self.done.is_set():
                self.stop.set()
                self.done.wait(30.0)
        if self.error is not None:
            raise self.error
