"""Continuous batching: requests join and leave between the forwards that they share.

A request is a generator as in `decode`: it asks for forwards and yields events. One thread owns the
models and resumes every generator; each step runs the draft forwards that are waiting as one, then
the target forwards as one. Token ids only, no text. A request is admitted when the cache blocks
that it could need are free, and reserves them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from time import monotonic, perf_counter

from .drafters import Forward, Reply
from .errors import Busy, CacheFull, RequestFailed
from .handle import END, Handle, Load, Waiting, Work
from .open import Model

log = logging.getLogger(__name__)

MERGED_TOKENS = 64
"""Tokens that a shared forward holds at most: as far as logits are known not to depend on what else
is in it."""

QUIET = 2.0
"""Seconds without a request before background work begins: the first request finds it idle."""

PATIENCE = 5.0
"""Seconds without background work after which it takes one step beside running requests."""

QUEUED = 256
"""Requests that may wait to be admitted."""


class Scheduler:
    """Runs requests together on the models they name.

    At most `most_active` requests run at a time, `queued` more wait in the order in which they
    came. A request is admitted when the cache blocks that it could need at worst fit beside those
    promised to the others, so that no forward ever finds the cache full; `make_room(model, blocks)`
    is called before, and must see to it that all else holds at most `blocks` blocks of the model.
    Both run in the engine's thread, as do all generators.

    Background work is done a step at a time while there are no requests, with `background`, and
    beside requests after `hurry`.

    A forward that fails is repeated request by request, and only those fail whose own forward does.
    Should a step of the engine's thread itself fail, the requests it had are failed and the thread
    goes on.
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
        self._turn = 0
        self._target_seconds = 0.0
        self._request_seconds: float | None = None
        self._restarts = 0
        self._background: deque[Generator[None]] = deque()
        self._in_quiet = background
        self._hurried = False
        self._busy_at = self._prepared_at = monotonic()
        self._thread = threading.Thread(target=self._main, name="specdemo-engine", daemon=True)
        self._thread.start()

    # For consumers, from any thread

    def submit(
        self,
        start: Callable[[], Work],
        models: Mapping[str, Model],
        *,
        blocks: Mapping[Model, int] | None = None,
        stop: threading.Event | None = None,
        first: bool = False,
        merged_tokens: int = MERGED_TOKENS,
    ) -> Handle:
        """Ask for a request to be run: `start` is called in the engine's thread and gives its
        generator, which yields Forwards (naming one of `models`; answered with a Reply) and, as
        anything else, events for the consumer.

        `blocks` are the most cache blocks it can come to hold of each model. `first` puts it before
        those that wait already. Its forwards are merged with those of others up to `merged_tokens`
        in all; larger ones, and with 0 all, are run alone. Raises Busy when the queue is full or
        the scheduler is closed, CacheFull when it could never fit.
        """
        blocks = blocks or {}
        for model, count in blocks.items():
            limit, size = model.pool.limit, model.block_size
            if count > limit:
                raise CacheFull(
                    f"This needs {count * size} tokens of KV cache; there are {limit * size}."
                )
        stop = stop or threading.Event()
        request = Handle(start, models, blocks, stop, merged_tokens, self.waiting)
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
        """Do this work later."""
        with self._wake:
            self._background.append(work)
            self._wake.notify()

    def hurry(self) -> None:
        """Do what is left of the background work beside requests, between their forwards."""
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
                log.error(
                    "The engine's loop failed and goes on without its requests.", exc_info=error
                )
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
        if not (self._queue or self._active):
            return
        self._busy_at = monotonic()
        with self._wake:
            stopped = [one for one in (*self._active, *self._queue) if one.stop.is_set()]
        for request in stopped:
            self._end(request)
        self._admit()
        ready = list(self._active)
        self._run_drafts(ready)
        self._run_targets(ready)

    def _run_background(self) -> None:
        try:
            next(self._background[0])
        except StopIteration:
            self._background.popleft()
        except Exception as error:
            log.error("Work in the background failed and is left.", exc_info=error)
            self._background.popleft()
        self._hurried = self._hurried and bool(self._background)
        self._prepared_at = monotonic()

    def _admit(self) -> None:
        while len(self._active) < self.most_active:
            with self._wake:
                if not self._queue:
                    return
                request = self._queue[0]
                if any(self._unreserved(one) < count for one, count in request.blocks.items()):
                    return
                self._active.append(self._queue.popleft())
            others = len(self._active) - 1
            for one in self._active:
                one.others, one.most_others = others, max(one.most_others, others)
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

    def _run_drafts(self, ready: list[Handle]) -> None:
        """Draft until nobody waits for it, or those that wait for the target have waited as long as
        it takes."""
        begun = perf_counter()
        while waiting := [request for request in ready if request.waits_for(draft=True)]:
            for batch in _batches(waiting, lambda request: MERGED_TOKENS):
                self._forward(batch)
            late = perf_counter() - begun > self._target_seconds
            if late and any(request.waits_for(draft=False) for request in ready):
                return

    def _run_targets(self, ready: list[Handle]) -> None:
        waiting = [request for request in ready if request.waits_for(draft=False)]
        large = [request for request in waiting if request.tokens > request.merged_tokens]
        # One at a time, the one not served for longest: a long prompt must not hold up the others.
        for request in sorted(large, key=lambda request: request.served_at)[1:]:
            waiting.remove(request)
        begun = perf_counter()
        for batch in _batches(waiting, lambda request: request.merged_tokens):
            self._forward(batch)
        if waiting:
            self._target_seconds = perf_counter() - begun

    def _forward(self, batch: list[Handle]) -> None:
        """Run one forward for these requests, and resume each with its part of it before the model
        runs again."""
        model = batch[0].model
        self._turn += 1
        begun = perf_counter()
        try:
            logits = model.forward([request.pending.run for request in batch])
        except Exception as error:
            if len(batch) == 1:
                log.error("A forward failed; the request ends.", exc_info=error)
                self._end(batch[0], error)
                return
            log.warning(
                "A forward of %d requests failed; each is run alone.", len(batch), exc_info=error
            )
            for request in batch:
                self._forward([request])
            return
        seconds = perf_counter() - begun
        total = sum(request.tokens for request in batch)
        if not (len(batch) == 1 and batch[0].pending.run.unpadded):
            total = max(total, model.least_tokens)
        for request, part in zip(batch, logits, strict=True):
            request.served_at = self._turn
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
            log.error("A request failed.", exc_info=error)
            self._end(request, error)

    def _end(
        self, request: Handle, error: BaseException | None = None, *, finished: bool = False
    ) -> None:
        """A request leaves and gives back what it holds: finished, failed or stopped."""
        with self._wake:
            (self._active if request in self._active else self._queue).remove(request)
        request.pending = None
        if request.work is not None:
            try:
                request.work.close()
            except Exception as closing:
                log.error("A request failed while it was ended.", exc_info=closing)
        request.error = error
        if not finished and error is None:
            request.stopped = True
        request.done.set()
        request.queue.put(END)


def _batches(requests: list[Handle], most_tokens: Callable[[Handle], int]) -> list[list[Handle]]:
    """The requests in batches of one model and at most so many tokens, in order; one with more is
    a batch of its own."""
    batches: list[list[Handle]] = []
    for model in dict.fromkeys(request.model for request in requests):
        room = -1
        for request in requests:
            if request.model is not model:
                continue
            if request.tokens > room:
                batches.append([])
                room = most_tokens(request)
            batches[-1].append(request)
            room -= request.tokens
    return batches
