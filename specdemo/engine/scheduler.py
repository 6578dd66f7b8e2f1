"""Continuous batching: requests join and leave between the forwards that they share. One thread
owns the models and resumes every request's generator; each step runs the draft forwards that are
waiting as one, then the target forwards as one."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from time import monotonic, perf_counter

from .drafters import Forward, Reply
from .errors import Busy, RequestFailed
from .handle import END, MERGED_TOKENS, Handle, Load, Waiting
from .model import Model

log = logging.getLogger(__name__)

QUEUED = 256
"""Requests that may wait to be admitted."""


QUIET, PATIENCE = 1.0, 10.0
"""Seconds without requests after which background work goes on, and with requests: each step of it
holds up what is being answered."""


class Scheduler:
    """Runs requests together on the models they name: `most_active` at a time, `queued` more wait
    in the order in which they came.

    A request is admitted when the cache blocks that it could need at worst fit beside those
    promised to the others, so that no forward ever finds the cache full; `make_room(model, blocks)`
    is called before, and must see to it that all else holds at most `blocks` blocks of the model.

    Background work is done while there are no requests, with `background`, and beside them after
    `hurry`. All of it runs in the engine's thread. Should that thread's loop fail, the requests it
    had are failed and it goes on.
    """

    def __init__(
        self,
        *,
        most_active: int = 16,
        queued: int = QUEUED,
        make_room: Callable[[Model, int], None] = lambda model, blocks: None,
        background: bool = True,
    ):
        self.most_active = most_active
        self.queued = queued
        self._make_room = make_room
        self._wake = threading.Condition()
        self._queue: deque[Handle] = deque()
        self._active: list[Handle] = []
        self._closed = False
        self._request_seconds: float | None = None
        self._restarts = 0
        self._background: deque[Generator[None]] = deque()
        self._in_quiet, self._hurried = background, False
        self._busy_at = self._prepared_at = monotonic()
        self._thread = threading.Thread(target=self._main, name="specdemo-engine", daemon=True)
        self._thread.start()

    # For consumers, from any thread

    def submit(self, request: Handle, *, first: bool = False) -> Handle:
        """Ask for a request to be run, with `first` before those that wait already; it needs fewer
        blocks than there are. Raises Busy when the queue is full or the scheduler is closed."""
        request.waiting = self.waiting
        with self._wake:
            if self._closed:
                raise Busy("The models have been closed.")
            waiting = len(self._queue)
            if not first and waiting + len(self._active) >= self.most_active + self.queued:
                raise Busy(f"{waiting} requests are waiting already; try again in a moment.")
            self._queue.insert(0 if first else waiting, request)
            self._wake.notify()
        return request

    def run_in_background(self, work: Generator[None]) -> None:
        """Do this work a step at a time, between the forwards of requests."""
        with self._wake:
            self._background.append(work)
            self._wake.notify()

    def hurry(self) -> None:
        """Do background work from now on."""
        with self._wake:
            self._hurried = True
            self._wake.notify()

    def waiting(self, request: Handle) -> Waiting:
        """Where in the queue a request is, 0 when it is active, and how long that may take at the
        measured rate."""
        with self._wake:
            place = self._queue.index(request) + 1 if request in self._queue else 0
            seconds, active = self._request_seconds, len(self._active)
        return Waiting(place, None if seconds is None else place * seconds / max(active, 1))

    @property
    def load(self) -> Load:
        with self._wake:
            active, waiting = len(self._active), len(self._queue)
            return Load(active, waiting, self._restarts, bool(self._background))

    def close(self) -> None:
        """Cancel everything and end the thread; nothing can be submitted afterwards."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        for request in [*self._active, *self._queue]:
            self._end(request)
        while self._background:
            self._background.popleft().close()

    # The engine's thread

    def _main(self) -> None:
        while True:
            try:
                while self._wait_for_work():
                    self.step()
                return
            except BaseException as error:  # whatever it was, the other requests must go on
                log.error("The engine's loop failed and goes on.", exc_info=error)
                lost = "The engine had to be restarted during this request; ask again."
                for request in list(self._active):
                    self._end(request, RequestFailed(lost))
                self._restarts += 1

    def _wait_for_work(self) -> bool:
        """True when there is something to do, False when the scheduler was closed."""
        with self._wake:
            while not (self._closed or self._queue or self._active or self._background_is_due()):
                self._wake.wait(QUIET / 4 if self._background and self._in_quiet else None)
            return not self._closed

    def _background_is_due(self) -> bool:
        if not self._background or self._hurried:
            return bool(self._background)
        quiet = monotonic() - self._busy_at >= QUIET
        return self._in_quiet and (quiet or monotonic() - self._prepared_at >= PATIENCE)

    def step(self) -> None:
        """One turn: let requests leave and join, then run what waits for the draft, then what waits
        for the target."""
        if self._background_is_due():
            self._run_background()
            self._prepared_at = monotonic()
        if self._queue or self._active:
            self._busy_at = monotonic()
        with self._wake:
            stopped = [one for one in (*self._active, *self._queue) if one.stop.is_set()]
        for request in stopped:
            self._end(request)
        self._admit()
        ready = list(self._active)
        long: list[Handle] = []
        # Long texts are read a piece a turn, by the target of one request: nobody is held up.
        while not long and (waiting := _waiting(ready, draft=True)):
            long = [one for one in waiting if one.tokens > MERGED_TOKENS]
            for batch in _batches(waiting):
                self._forward(batch)
        waiting = _waiting(ready, draft=False)
        for request in [one for one in waiting if one.tokens > MERGED_TOKENS][1:]:
            waiting.remove(request)
        for batch in _batches(waiting):
            self._forward(batch)

    def _run_background(self) -> None:
        try:
            left = next(self._background[0], END) is not END
        except Exception as error:
            log.error("Work in the background failed and is left.", exc_info=error)
            left = False
        if not left:
            self._background.popleft()

    def _admit(self) -> None:
        while len(self._active) < self.most_active:
            with self._wake:
                if not self._queue:
                    return
                request = self._queue[0]
                if any(self._unreserved(one) < count for one, count in request.blocks.items()):
                    return
                self._active.append(self._queue.popleft())
            for one in self._active:
                one.most_others = max(one.most_others, len(self._active) - 1)
            request.admitted_at = perf_counter()
            try:
                for model in request.blocks:
                    self._make_room(model, self._unreserved(model))
                request.work = request.start()
            except Exception as error:
                self._end(request, error)
            else:
                self._resume(request, None)

    def _unreserved(self, model: Model) -> int:
        """Blocks of a model that no active request may come to hold."""
        return model.pool.limit - sum(request.blocks.get(model, 0) for request in self._active)

    def _forward(self, batch: list[Handle]) -> None:
        """Run one forward for these requests, and resume each with its part of it before the model
        runs again."""
        model = batch[0].model
        begun = perf_counter()
        try:
            logits = model.forward([request.pending.run for request in batch])
        except Exception as error:
            if len(batch) == 1:
                return self._end(batch[0], error)
            for request in batch:  # each alone: only those fail whose own forward does
                self._forward([request])
            return
        seconds = perf_counter() - begun
        total = sum(request.tokens for request in batch)
        if not (len(batch) == 1 and batch[0].pending.run.unpadded):
            total = max(total, model.least_tokens)
        for request, part in zip(batch, logits, strict=True):
            request.pending = None
            self._resume(request, Reply(part, seconds, total, request is batch[0]))

    def _resume(self, request: Handle, reply: Reply | None) -> None:
        """Let the request go on until it needs a forward or ends."""
        send, put = request.work.send, request.queue.put
        try:
            event = send(reply)
            while type(event) is not Forward:
                put(event)
                event = send(None)
            request.pending = event
        except StopIteration as done:
            request.result = done.value
            took = perf_counter() - request.admitted_at
            known = self._request_seconds
            self._request_seconds = took if known is None else 0.8 * known + 0.2 * took
            self._end(request, finished=True)
        except Exception as error:
            self._end(request, error)

    def _end(
        self, request: Handle, error: BaseException | None = None, *, finished: bool = False
    ) -> None:
        """A request leaves and gives back what it holds: finished, failed or stopped."""
        with self._wake:
            (self._active if request in self._active else self._queue).remove(request)
        request.pending = None
        if request.work is not None:
            with suppress(Exception):  # it may fail again
                request.work.close()
        request.error = error
        request.stopped |= error is None and not finished
        request.done.set()
        request.queue.put(END)


def _waiting(requests: list[Handle], draft: bool) -> list[Handle]:
    """Those that wait for a forward of the draft model, or of the target model."""
    return [one for one in requests if one.pending and (one.pending.model == "draft") == draft]


def _batches(requests: list[Handle]) -> list[list[Handle]]:
    """The requests in batches of one model and at most as many tokens as may be merged, in order;
    one with more is a batch of its own."""
    batches: list[list[Handle]] = []
    for model in dict.fromkeys(request.model for request in requests):
        room = -1
        for request in requests:
            if request.model is not model:
                continue
            if request.tokens > room:
                batches.append([])
                room = request.merged_tokens
            batches[-1].append(request)
            room -= request.tokens
    return batches
