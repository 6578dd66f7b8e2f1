"""A submitted request: what the scheduler knows of it, and the handle for whoever submitted it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any

from .drafters import Forward, Reply
from .model import PagedModel

COLLECT_EVERY, MOST_BETWEEN = 0.02, 0.16
"""Seconds between two looks of a consumer that has caught up, for each active request, and at most:
woken for each round, it would contend for the GIL just when the engine's thread comes back from an
inference."""

Work = Generator[Any, Reply | None, Any]


@dataclass(slots=True)
class Sharing:
    """What a request may know of the others: `rows` that they brought to the last target forward,
    how many `others` were active then, and `most_others` so far."""

    rows: int = 0
    others: int = 0
    most_others: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue (1 is next, 0 that the models are being prepared), and the seconds that
    may take, None while nothing is known about that."""

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler is doing: requests `active` and `waiting`, what became of those before,
    and whether work is left for when there are none."""

    active: int
    waiting: int
    admitted: int
    finished: int
    failed: int
    cancelled: int
    restarts: int
    preparing: bool = False


END = object()


@dataclass(eq=False, slots=True)
class ScheduledRequest:
    """A request inside the scheduler. `work` is None until it is admitted."""

    start: Callable[[Sharing], Work]
    models: Mapping[str, PagedModel]
    blocks: list[tuple[PagedModel, int]]
    stop: threading.Event | None
    merged_tokens: int
    sharing: Sharing = field(default_factory=Sharing)
    events: SimpleQueue = field(default_factory=SimpleQueue)
    done: threading.Event = field(default_factory=threading.Event)
    work: Work | None = None
    pending: Forward | None = None
    served_at: int = 0
    admitted_at: float = 0.0
    collected_at: float = field(default_factory=monotonic)
    unwanted: bool = False
    cancelled: bool = False
    error: BaseException | None = None
    result: Any = None

    def stopping(self) -> bool:
        return self.unwanted or (self.stop is not None and self.stop.is_set())

    def waits_for(self, draft: bool) -> bool:
        """Whether its next forward is the draft model's, or else the target model's."""
        return self.pending is not None and (self.pending.model == "draft") == draft

    @property
    def model(self) -> PagedModel:
        return self.models[self.pending.model]

    @property
    def tokens(self) -> int:
        """Tokens that its waiting forward runs."""
        return len(self.pending.run.tokens)


class Handle:
    """Handle to a submitted request: iterate over it for its events; then `result` is what the
    request returned.

    The iteration raises what the request raised. It ends early when `stop` is set: events not
    collected by then are dropped, `stopped` is true, and the request has given back all it held.
    """

    def __init__(
        self,
        request: ScheduledRequest,
        cancel: Callable[[ScheduledRequest], None],
        waiting: Callable[[ScheduledRequest], Waiting],
    ):
        self._cancel = cancel
        self._waiting = waiting
        self._request = request
        self.result: Any = None
        self.stopped = False

    @property
    def sharing(self) -> Sharing:
        return self._request.sharing

    def __iter__(self) -> Iterator[Any]:
        return self.events()

    def events(
        self, on_wait: Callable[[Waiting], None] | None = None, every: float = 1.0
    ) -> Iterator[Any]:
        """The events. While the request waits to be admitted, `on_wait` is called about `every`
        seconds."""
        request = self._request
        collected = False
        try:
            while True:
                if collected and request.events.empty():
                    sleep(min(COLLECT_EVERY * (1 + request.sharing.others), MOST_BETWEEN))
                try:
                    event = request.events.get(timeout=every)
                except Empty:
                    if on_wait is not None and request.work is None and not request.done.is_set():
                        on_wait(self._waiting(request))
                    continue
                collected = True
                request.collected_at = monotonic()
                if event is END:
                    break
                if request.stop is not None and request.stop.is_set():
                    self.stopped = True
                    continue
                yield event
        finally:
            self.close()
        if request.error is not None:
            raise request.error
        self.stopped = self.stopped or request.cancelled
        self.result = request.result

    def close(self, timeout: float = 30.0) -> None:
        """Cancel what is left of the request, and wait until it has given back what it held. Twice
        is harmless."""
        if not self._request.done.is_set():
            self._cancel(self._request)
            self._request.done.wait(timeout)
