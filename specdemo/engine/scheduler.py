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
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, perf_counter

from .drafters import Forward, Reply
from .errors import Busy, CacheFull, RequestFailed
from .handle import END, Handle, Load, ScheduledRequest, Sharing, Waiting, Work
from .model import PagedModel

log = logging.getLogger(__name__)

MERGED_TOKENS = 64
"""Tokens that a shared forward holds at most: as far as logits are known not to depend on what else
is in it."""

UNDELIVERED = 512
"""Events that may wait for a consumer before its request is paused."""

ABANDONED_AFTER = 30.0
"""Seconds without collecting anything after which a paused request is cancelled."""

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

    A forward that fails is repeated request by request, and only those fail whose own forward does.
    Should a step of the engine's thread itself fail, the requests it had are failed and the thread
    goes on.
    """

    def __init__(
        self,
        *,
        most_active: int = 16,
        queued: int = QUEUED,
        make_room: Callable[[PagedModel, int], None] | None = None,
        name: str = "specdemo-engine",
    ):
        self.most_active = most_active
        self.queued = queued
        self._make_room = make_room
        self._name = name
        self._wake = threading.Condition()
        self._queue: deque[ScheduledRequest] = deque()
        self._active: list[ScheduledRequest] = []
        self._reserved: dict[PagedModel, int] = {}
        self._closed = False
        self._turn = 0
        self._target_seconds = 0.0
        self._target_tokens = 0
        self._request_seconds: float | None = None
        self._counts = dict.fromkeys(("admitted", "finished", "failed", "cancelled", "restarts"), 0)
        self._background: deque[Generator[None]] = deque()
        self._hurried = 0
        self._quiet_since = self._prepared_at = monotonic()
        self._thread: threading.Thread | None = None

    # For consumers, from any thread

    def submit(
        self,
        start: Callable[[Sharing], Work],
        models: Mapping[str, PagedModel],
        *,
        blocks: Mapping[PagedModel, int] | None = None,
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
        needed = list((blocks or {}).items())
        for model, count in needed:
            limit, size = model.pool.limit, model.block_size
            if count > limit:
                raise CacheFull(
                    f"This needs {count * size} tokens of KV cache; there are {limit * size}."
                )
        request = ScheduledRequest(start, models, needed, stop, merged_tokens)
        with self._wake:
            if self._closed:
                raise Busy("The models have been closed.")
            present = len(self._queue) + len(self._active)
            if not first and present >= self.most_active + self.queued:
                raise Busy(
                    f"{len(self._queue)} requests are waiting already; try again in a moment."
                )
            if first:
                self._queue.appendleft(request)
            else:
                self._queue.append(request)
            self._start()
        return Handle(request, self.cancel, self.waiting)

    def run_in_background(self, work: Generator[None]) -> None:
        """Do this work a step at a time, in the engine's thread, while there are no requests."""
        with self._wake:
            self._background.append(work)
            self._start()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Within, the background work goes on beside requests, between their forwards."""
        with self._wake:
            self._hurried += 1
            self._wake.notify()
        try:
            yield
        finally:
            with self._wake:
                self._hurried -= 1

    def _start(self) -> None:
        """Wake the engine's thread. The caller holds the lock."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()
        self._wake.notify()

    def cancel(self, request: ScheduledRequest) -> None:
        with self._wake:
            request.unwanted = True
            self._wake.notify()

    def waiting(self, request: ScheduledRequest) -> Waiting:
        """Where in the queue a request is, 0 when it is active, and how long that may take at the
        measured rate."""
        with self._wake:
            places = enumerate(self._queue, 1)
            place = next((at for at, other in places if other is request), 0)
            seconds, active = self._request_seconds, len(self._active)
        return Waiting(place, None if seconds is None else place * seconds / max(active, 1))

    @property
    def load(self) -> Load:
        with self._wake:
            active, waiting = len(self._active), len(self._queue)
            return Load(active, waiting, **self._counts, preparing=bool(self._background))

    def close(self) -> None:
        """Cancel everything and end the thread; nothing can be submitted afterwards."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._wake:
            self._drop_active(None)
            while self._background:
                self._background.popleft().close()
            while self._queue:
                self._end(self._queue.popleft(), cancelled=True)

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
                with self._wake:
                    self._drop_active(
                        RequestFailed(
                            "The engine had to be restarted during this request; ask again."
                        )
                    )
                    self._counts["restarts"] += 1

    def _wait_for_work(self) -> bool:
        """True when there is something to do, False when the scheduler was closed."""
        with self._wake:
            while not (self._closed or self._queue or self._active):
                quiet = monotonic() - self._quiet_since
                if self._background and (self._hurried or quiet >= QUIET):
                    break
                self._wake.wait(max(QUIET - quiet, 0.0) if self._background else None)
            return not self._closed

    def step(self) -> None:
        """One turn: let requests leave and join, then run what waits for the draft, then what waits
        for the target."""
        busy = self._queue or self._active
        late = monotonic() - self._prepared_at > PATIENCE
        if self._background and (self._hurried or late or not busy):
            self._run_background()
            self._prepared_at = monotonic()
        if busy:
            self._quiet_since = monotonic()
        self._sweep()
        if self._queue:
            self._admit()
        ready = [request for request in self._active if request.events.qsize() <= UNDELIVERED]
        if ready:
            self._run_drafts(ready)
            self._run_targets(ready)
        elif self._active:
            with self._wake:
                self._wake.wait(0.05)

    def _run_background(self) -> None:
        try:
            next(self._background[0])
        except StopIteration:
            self._background.popleft()
        except Exception as error:
            log.error("Work in the background failed and is left.", exc_info=error)
            self._background.popleft()

    def _sweep(self) -> None:
        """Let go of requests that were stopped or that nobody collects."""
        for request in list(self._active):
            late = monotonic() - request.collected_at > ABANDONED_AFTER
            if request.stopping() or (late and request.events.qsize() > UNDELIVERED):
                self._leave(request, cancelled=True)
        if self._queue:
            with self._wake:
                gone = [request for request in self._queue if request.stopping()]
                for request in gone:
                    self._queue.remove(request)
            for request in gone:
                self._end(request, cancelled=True)

    def _admit(self) -> None:
        while len(self._active) < self.most_active:
            with self._wake:
                if not self._queue or not self._fits(self._queue[0]):
                    break
                request = self._queue.popleft()
                for model, count in request.blocks:
                    self._reserved[model] = self._reserved.get(model, 0) + count
                self._active.append(request)
                self._counts["admitted"] += 1
            request.admitted_at = perf_counter()
            try:
                for model, _ in request.blocks:
                    if self._make_room is not None:
                        self._make_room(model, model.pool.limit - self._reserved[model])
                if len(self._active) > 1:
                    request.sharing.rows = self._target_tokens
                request.work = request.start(request.sharing)
            except Exception as error:
                self._leave(request, error)
                continue
            self._resume(request, None)
        others = len(self._active) - 1
        for request in self._active:
            request.sharing.others = others
            request.sharing.most_others = max(request.sharing.most_others, others)

    def _fits(self, request: ScheduledRequest) -> bool:
        return all(
            self._reserved.get(model, 0) + count <= model.pool.limit
            for model, count in request.blocks
        )

    def _run_drafts(self, ready: list[ScheduledRequest]) -> None:
        """Draft until nobody waits for it, or those that wait for the target have waited as long as
        it takes."""
        begun = perf_counter()
        while waiting := [request for request in ready if request.waits_for(draft=True)]:
            for model, requests in _by_model(waiting):
                for batch in _packed(requests, MERGED_TOKENS):
                    self._forward(model, batch)
            late = perf_counter() - begun > self._target_seconds
            if late and any(request.waits_for(draft=False) for request in ready):
                return
            for request in waiting:  # a stop is honoured between two draft tokens as well
                if request.pending is not None and request.stopping():
                    self._leave(request, cancelled=True)

    def _run_targets(self, ready: list[ScheduledRequest]) -> None:
        waiting = [request for request in ready if request.waits_for(draft=False)]
        for model, requests in _by_model(waiting):
            small = [request for request in requests if request.tokens <= request.merged_tokens]
            large = [request for request in requests if request.tokens > request.merged_tokens]
            before = perf_counter()
            for batch in _packed(small, min((one.merged_tokens for one in small), default=0)):
                self._forward(model, batch)
            if large:
                # One at a time, the one not served for longest: a long prompt must not hold up the
                # others.
                self._forward(model, [min(large, key=lambda request: request.served_at)])
            self._target_seconds = perf_counter() - before

    def _forward(self, model: PagedModel, batch: list[ScheduledRequest]) -> None:
        """Run one forward for these requests, and resume each with its part of it before the model
        runs again."""
        self._turn += 1
        begun = perf_counter()
        try:
            logits = model.forward([request.pending.run for request in batch])
        except Exception as error:
            if len(batch) == 1:
                log.error("A forward failed; the request ends.", exc_info=error)
                self._leave(batch[0], error)
                return
            log.warning(
                "A forward of %d requests failed; each is run alone.", len(batch), exc_info=error
            )
            for request in batch:
                self._forward(model, [request])
            return
        seconds = perf_counter() - begun
        total = sum(request.tokens for request in batch)
        if not (len(batch) == 1 and batch[0].pending.run.unpadded):
            total = max(total, model.least_tokens)
        verifies = batch[0].waits_for(draft=False)
        if verifies:
            self._target_tokens = total
        for request, part in zip(batch, logits, strict=True):
            request.served_at = self._turn
            if verifies:
                request.sharing.rows = total - request.tokens
            request.pending = None
            self._resume(request, Reply(part, seconds, total, request is batch[0]))

    def _resume(self, request: ScheduledRequest, reply: Reply | None) -> None:
        """Let the request go on until it needs a forward or ends."""
        send, put = request.work.send, request.events.put
        try:
            event = send(reply)
            while type(event) is not Forward:
                put(event)
                event = send(None)
            request.pending = event
        except StopIteration as done:
            request.result = done.value
            self._leave(request)
        except Exception as error:
            log.error("A request failed.", exc_info=error)
            self._leave(request, error)

    # Ends

    def _leave(
        self,
        request: ScheduledRequest,
        error: BaseException | None = None,
        *,
        cancelled: bool = False,
    ) -> None:
        """An active request ends: it gives back what it holds and is no longer counted."""
        with self._wake:
            if request not in self._active:
                return
            self._active.remove(request)
            for model, count in request.blocks:
                self._reserved[model] -= count
        if not cancelled and error is None:
            took = perf_counter() - request.admitted_at
            known = self._request_seconds
            self._request_seconds = took if known is None else 0.8 * known + 0.2 * took
        self._end(request, error, cancelled=cancelled)

    def _end(
        self,
        request: ScheduledRequest,
        error: BaseException | None = None,
        *,
        cancelled: bool = False,
    ) -> None:
        request.pending = None
        if request.work is not None:
            try:
                request.work.close()
            except Exception as closing:
                log.error("A request failed while it was ended.", exc_info=closing)
        request.error = error
        request.cancelled = cancelled
        with self._wake:
            outcome = "cancelled" if cancelled else "failed" if error is not None else "finished"
            self._counts[outcome] += 1
        request.done.set()
        request.events.put(END)

    def _drop_active(self, error: BaseException | None) -> None:
        for request in list(self._active):
            self._leave(request, error, cancelled=error is None)


def _by_model(requests: list[ScheduledRequest]) -> list[tuple[PagedModel, list[ScheduledRequest]]]:
    grouped: dict[PagedModel, list[ScheduledRequest]] = {}
    for request in requests:
        grouped.setdefault(request.model, []).append(request)
    return list(grouped.items())


def _packed(requests: list[ScheduledRequest], tokens: int) -> list[list[ScheduledRequest]]:
    """The requests in batches of at most `tokens` tokens, in order; one with more is a batch of its
    own."""
    batches: list[list[ScheduledRequest]] = []
    room = -1
    for request in requests:
        size = request.tokens
        if size > room:
            batches.append([])
            room = tokens
        batches[-1].append(request)
        room -= size
    return batches
