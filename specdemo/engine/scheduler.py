"""Continuous batching: one thread owns the models and resumes every request's generator. It merges
the forwards that they ask for, first those of the draft model, then those of the target model."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import Any

from .background import END, Background
from .faults import Busy, Closed, RequestFailed
from .forwards import Forward, Reply, Runner
from .policy import shared_lengths
from .prefixes import PrefixCache
from .profile import MERGED_TOKENS
from .rounds import Timing

log = logging.getLogger(__name__)
QUEUED = 256  # requests that may wait to be admitted

COLLECT_EVERY = 0.02
"""Seconds that a consumer with an empty queue sleeps, times the active requests (at most 8). Woken
for each round, it would contend for the GIL with the engine's thread."""

AWAIT = 0.05  # seconds without a look at stop signals while all requests await Futures


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue (1: next; 0: active or in preparation), and the seconds left."""

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """Numbers of requests and of restarts of the loop; whether background work is left."""

    active: int = 0
    waiting: int = 0
    restarts: int = 0
    preparing: bool = False


@dataclass(eq=False, slots=True)
class Handle:
    """A submitted request."""

    work: Generator[Any, Reply | None, Any]  # yields events, Forwards and Futures
    models: Mapping[str, Runner]  # of the Forwards
    blocks: Mapping[PrefixCache, int] = field(default_factory=dict)  # it reserves so many
    merged_tokens: int = MERGED_TOKENS  # of a forward that it shares with others
    stop: threading.Event = field(default_factory=threading.Event)
    timed: bool = False  # no background work runs beside it
    waiting: Callable[[Handle], Waiting] = lambda request: Waiting(0, None)
    queue: SimpleQueue[Any] = field(default_factory=SimpleQueue)  # its events
    pending: Any = None  # a Forward until its Reply
    awaited: Future[Any] | None = None  # while other requests go on
    max_others: int = 0  # the most other requests that were active with it
    own_seconds: float = 0.0  # of its code since its last forward of the target model
    compiling: bool = False  # a step of background work delayed it
    admitted_at: float = 0.0
    timing: Timing = field(default_factory=Timing)
    error: BaseException | None = None
    left: bool = False  # nobody reads its events any more
    stopped: bool = False
    result: Any = None  # what `work` returned, unless it was stopped

    @property
    def model(self) -> Runner:
        return self.models[self.pending.model]

    @property
    def tokens(self) -> int:
        return len(self.pending.run.tokens)

    @property
    def continues_prompt(self) -> bool:
        """Whether the pending forward is a chunk of a prompt, and not its last one."""
        return not self.pending.run.stepwise and self.pending.run.rows != 1

    @property
    def awaits(self) -> bool:
        return self.awaited is not None and not self.awaited.done()

    def events(self, every: float = 1.0, *, at_once: bool = False) -> Generator[Any]:
        """The events of the request, several together unless `at_once`; raises its error. Until it
        is admitted, its Waiting comes every `every` seconds. Leaving the iteration ends it,
        as `stop` does, which drops further events."""
        event = None
        try:
            while event is not END:
                try:
                    event = self.queue.get(timeout=every)
                except Empty:
                    if not self.admitted_at:
                        yield self.waiting(self)
                    continue
                if self.stop.is_set():
                    self.stopped |= event is not END
                elif event is not END:
                    yield event
                    if self.queue.empty() and not at_once:
                        sleep(COLLECT_EVERY * min(1 + self.max_others, 8))
        finally:
            self.left = True
            with suppress(Empty):
                while event is not END:
                    event = self.queue.get(timeout=30.0)
        if self.error is not None:
            raise self.error


class Scheduler:
    """Runs at most `max_active` requests together; `queued` more wait in order. One is admitted
    when no active request may need the cache blocks that it could need at worst, so that no forward
    finds the cache full. Work in the background runs in quiet moments if `background` is set, else
    only after `hurry`. If the loop fails, the active requests fail and the loop goes on."""

    def __init__(self, *, max_active: int = 16, queued: int = QUEUED, background: bool = True):
        self.max_active = max_active
        self.queued = queued
        self._wake = threading.Condition()
        self._queue: deque[Handle] = deque()
        self._active: list[Handle] = []
        self._closed = False
        self._request_seconds: float | None = None
        self._restarts = 0
        self._background = Background(only_hurried=not background)
        self._thread = threading.Thread(target=self._main, name="specdemo-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Handle, *, first: bool = False) -> Handle:
        """Queue a request, with `first` before all that wait. Raises Busy when the queue is full
        (not with `first`), Closed, and RequestFailed in a forked process."""
        request.waiting = self.waiting
        with self._wake:
            if self._closed:
                raise Closed
            if not self._thread.is_alive():  # a fork has the memory of a process, and no threads
                raise RequestFailed("Another process loaded the models; load them in this one.")
            waiting = len(self._queue)
            if not first and waiting + len(self._active) >= self.max_active + self.queued:
                raise Busy(f"{waiting} requests are waiting already; try again in a moment.")
            self._queue.insert(0 if first else waiting, request)
            self._wake.notify()
        return request

    def run_in_background(self, work: Generator[None]) -> None:
        """Do this work one step at a time, between the forwards of requests."""
        self._background.add(work)
        self._notify()

    def hurry(self, until: threading.Event) -> None:
        """Do background work beside requests too, until this is set."""
        self._background.hurry(until)
        self._notify()

    def waiting(self, request: Handle) -> Waiting:
        """The place of a request in the queue, 0 when it is active, and the seconds left."""
        with self._wake:
            place = self._queue.index(request) + 1 if request in self._queue else 0
            seconds, active = self._request_seconds, len(self._active)
        return Waiting(place, None if seconds is None else place * seconds / max(active, 1))

    @property
    def activity(self) -> Activity:
        with self._wake:
            active, waiting = len(self._active), len(self._queue)
            return Activity(active, waiting, self._restarts, bool(self._background))

    def close(self) -> None:
        """Cancel all requests and end the thread. No request can be submitted afterwards. A second
        call does nothing."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._cancel([*self._active, *self._queue])
        self._background.close()

    def _main(self) -> None:
        while not self._closed:
            try:
                self._wait_for_work()
                if self._background_is_due():
                    for request in self._active:
                        request.compiling = True
                    self._background.step()
                self.step()
            except BaseException as error:  # whatever failed, the queued requests must go on
                log.error("The engine's loop failed and goes on.", exc_info=error)
                lost = "The engine had to be restarted during this request; ask again."
                for request in list(self._active):
                    self._end(request, RequestFailed(lost))
                self._restarts += 1

    def _wait_for_work(self) -> None:
        with self._wake:
            while not (self._closed or self._queue or self._active or self._background_is_due()):
                self._wake.wait(self._background.pause)
            if self._active and all(active.awaits for active in self._active):
                self._wake.wait(AWAIT)

    def _background_is_due(self) -> bool:
        timed = any(active.timed for active in self._active)
        return self._background.due(busy=bool(self._queue or self._active), timed=timed)

    def step(self) -> None:
        """Remove stopped requests, admit queued ones, run pending forwards: draft, then target."""
        with self._wake:
            handles = *self._active, *self._queue
            stopped = [handle for handle in handles if handle.left or handle.stop.is_set()]
        self._cancel(stopped)
        self._admit()
        for request in [active for active in self._active if active.awaited and not active.awaits]:
            self._resume(request, None)
        for name in ("draft", "target"):
            while True:
                waiting = [h for h in self._active if h.pending and h.pending.model == name]
                # Last, a chunk of the unfinished prompt of which fewest tokens were read. So a new
                # request waits for at most one chunk of the longer prompts.
                long = [h for h in waiting if h.continues_prompt]
                if name == "target":
                    _share_rows([h for h in waiting if h.pending.chances or h.pending.run.stepwise])
                for batch in _batches([h for h in waiting if not h.continues_prompt]):
                    self._forward(batch)
                if long:
                    self._forward([min(long, key=lambda h: h.pending.run.sequence.length)])
                if name == "target" or long or not waiting:
                    break

    def _admit(self) -> None:
        while len(self._active) < self.max_active:
            with self._wake:
                if not self._queue:
                    return
                request = self._queue[0]
                if any(self._room(cache) < count for cache, count in request.blocks.items()):
                    return
                self._active.append(self._queue.popleft())
            for cache in request.blocks:
                cache.make_room(self._room(cache))
            for active in self._active:
                active.max_others = max(active.max_others, len(self._active) - 1)
            request.admitted_at = perf_counter()
            self._resume(request, None)

    def _room(self, cache: PrefixCache) -> int:
        """The number of blocks that no active request has reserved. Kept texts may hold them."""
        return cache.capacity - sum(active.blocks.get(cache, 0) for active in self._active)

    def _forward(self, batch: list[Handle]) -> None:
        model = batch[0].model
        begun = perf_counter()
        try:
            logits = model.forward([request.pending.run for request in batch])
        except Exception as error:
            if len(batch) == 1:
                return self._end(batch[0], error)
            for request in batch:  # one by one: a request fails only if its own forward does
                self._forward([request])
            return
        seconds = perf_counter() - begun
        for request, part in zip(batch, logits, strict=True):
            reply = Reply(part, seconds, request.max_others > 0, request.own_seconds)
            if request.pending.model == "target":
                request.own_seconds = 0.0
            request.pending = None
            self._resume(request, reply)

    def _resume(self, request: Handle, reply: Reply | None) -> None:
        """Let the request go on until it needs a forward or awaits a Future, or ends."""
        begun = perf_counter()
        try:
            event = request.work.send(reply)
            request.awaited = None
            while type(event) is not Forward:
                if isinstance(event, Future):
                    request.awaited = event
                    event.add_done_callback(lambda _: self._notify())
                    return
                request.queue.put(event)
                event = request.work.send(None)
            request.pending = event
        except StopIteration as done:
            request.result = done.value
            self._request_seconds = perf_counter() - request.admitted_at
            self._end(request)
        except Exception as error:
            self._end(request, error)
        finally:
            request.own_seconds += perf_counter() - begun

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _cancel(self, requests: list[Handle]) -> None:
        for request in requests:
            request.stopped = True
            self._end(request)

    def _end(self, request: Handle, error: BaseException | None = None) -> None:
        with self._wake:
            (self._active if request in self._active else self._queue).remove(request)
        request.pending = None
        with suppress(Exception):  # it may fail again
            request.work.close()
        request.error = error
        request.queue.put(END)


def _share_rows(requests: list[Handle]) -> None:
    """Leave out the draft tokens that would take the forward of all these requests longer than they
    are worth."""
    for model in {request.model for request in requests}:
        sharing = [request for request in requests if request.model is model]
        chances = [request.pending.chances for request in sharing]
        if not any(chances):
            continue
        least = sum(request.tokens - len(request.pending.chances) for request in sharing)
        context = sum(request.pending.run.sequence.length for request in sharing) // len(sharing)
        seconds = [
            model.costs.forward(least + rows, context) for rows in range(sum(map(len, chances)) + 1)
        ]
        spent = max(request.pending.spent for request in sharing)
        lengths = shared_lengths(chances, seconds, spent)
        for request, length in zip(sharing, lengths, strict=True):
            if left_out := len(request.pending.chances) - length:
                run = request.pending.run
                tokens = run.tokens[: len(run.tokens) - left_out]
                request.pending = replace(
                    request.pending, run=replace(run, tokens=tokens, rows=run.rows - left_out)
                )


def _batches(requests: list[Handle]) -> list[list[Handle]]:
    """Batches of one model and at most `merged_tokens` tokens, the shortest first; a larger request
    gets its own."""
    batches: list[list[Handle]] = []
    model, room = None, -1
    for request in sorted(requests, key=lambda request: (id(request.model), request.tokens)):
        if request.tokens > room or request.model is not model:
            batches.append([])
            model, room = request.model, request.merged_tokens
        batches[-1].append(request)
        room -= request.tokens
    return batches
