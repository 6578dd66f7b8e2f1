"""A submitted request: what the scheduler knows of it, and what is iterated over for its events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any

from .drafters import Forward, Reply
from .model import Model

MERGED_TOKENS = 64
"""Tokens that a shared forward holds at most: as far as logits are known not to depend on what else
is in it."""

COLLECT_EVERY, MOST_BETWEEN = 0.02, 0.16
"""Seconds between two looks of a consumer that has caught up, for each active request, and at most:
woken for each round, it would contend for the GIL just when the engine's thread comes back from an
inference."""

END = object()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue (1 is next, 0 that the models are being prepared), and the seconds that
    may take, if known."""

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler is doing: requests `active` and `waiting`, how often its thread had to
    begin anew, and whether background work is left."""

    active: int = 0
    waiting: int = 0
    restarts: int = 0
    preparing: bool = False


@dataclass(eq=False, slots=True)
class Handle:
    """A request. After its `events`, `result` is what it returned, or it was `stopped`;
    `most_others` were active at once beside it.

    `start` is called in the engine's thread and gives its generator `work`, which yields Forwards
    (naming one of `models`; answered with a Reply; `pending` until then) and, as anything else,
    events. `blocks` are the most cache blocks it can come to hold of each model. Its forwards are
    merged with those of others up to `merged_tokens` in all; larger ones are run alone.
    """

    start: Callable[[], Generator[Any, Reply | None, Any]]
    models: Mapping[str, Model]
    blocks: Mapping[Model, int] = field(default_factory=dict)
    merged_tokens: int = MERGED_TOKENS
    stop: threading.Event = field(default_factory=threading.Event)
    waiting: Callable[[Handle], Waiting] | None = None
    queue: SimpleQueue = field(default_factory=SimpleQueue)
    done: threading.Event = field(default_factory=threading.Event)
    work: Generator[Any, Reply | None, Any] | None = None
    pending: Forward | None = None
    most_others: int = 0
    admitted_at: float = 0.0
    error: BaseException | None = None
    stopped: bool = False
    result: Any = None

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
        is called about `every` seconds. Once `stop` is set the rest is dropped; leaving the
        iteration sets it. The request has then given back all it held."""
        collected = False
        try:
            while True:
                if collected and self.queue.empty():
                    sleep(min(COLLECT_EVERY * (1 + self.most_others), MOST_BETWEEN))
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
