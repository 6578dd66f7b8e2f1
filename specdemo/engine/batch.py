"""Many requests, one set of models: decodings of different visitors join and leave between forwards that they share.

A request is a generator as in `decode`: it asks for forwards and yields events. One thread owns the models and resumes
every generator; each step runs the draft forwards that are waiting as one, then the target forwards as one. Token ids
only, no text; which request may run at all is decided by the cache blocks it could need, reserved when it is admitted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter, sleep
from typing import Any

from .drafters import Forward, Reply
from .errors import Busy, CacheFull, RequestFailed
from .model import PagedModel

log = logging.getLogger(__name__)

MERGED_TOKENS = 64
"""Tokens that a shared forward holds at most: as far as logits are known not to depend on what else is in it."""

UNDELIVERED = 512
"""Events that may wait for a consumer before its request is paused."""

ABANDONED_AFTER = 30.0
"""Seconds without collecting anything after which a paused request is cancelled."""

COLLECT_EVERY, MOST_BETWEEN = 0.02, 0.16
"""Seconds between two looks of a consumer that has caught up, for each request at work, and at most: woken for each round,
it would hold the interpreter just when the engine's thread comes back from an inference."""

QUEUED = 256
"""Requests that may wait to be admitted."""

Work = Generator[Any, Reply | None, Any]


@dataclass(slots=True)
class Share:
    """What a request may know of the others: `rows` that they brought to the last target forward, how many `others` were
    at work then, and `most_others` so far."""

    rows: int = 0
    others: int = 0
    most_others: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue (1 is next), and the seconds that may take, None while nothing is known about that."""

    place: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What the batcher is doing: requests `active` and `waiting`, and what it has done since it began."""

    active: int
    waiting: int
    admitted: int
    finished: int
    failed: int
    cancelled: int
    restarts: int


_END = object()


class Ticket:
    """A request's end for the one who made it: iterate over it for its events; then `result` is what it returned.

    The iteration raises what the request raised. It ends early when `stop` is set: events not collected by then are
    dropped, `stopped` is true, and the request has given back all it held.
    """

    def __init__(self, batcher: Batcher, job: _Job):
        self._batcher = batcher
        self._job = job
        self.result: Any = None
        self.stopped = False

    @property
    def share(self) -> Share:
        return self._job.share

    def __iter__(self) -> Iterator[Any]:
        return self.events()

    def events(self, on_wait: Callable[[Waiting], None] | None = None, every: float = 1.0) -> Iterator[Any]:
        """The events. While the request waits to be admitted, `on_wait` is called about `every` seconds."""
        job = self._job
        stop = job.stop
        try:
            while True:
                item = self._next(on_wait, every)
                if stop is not None and stop.is_set() and item is not _END:
                    self.stopped = True
                    continue
                if item is _END:
                    break
                yield item
        finally:
            self.close()
        if job.error is not None:
            raise job.error
        self.stopped = self.stopped or job.cancelled
        self.result = job.result

    def _next(self, on_wait: Callable[[Waiting], None] | None, every: float) -> Any:
        job = self._job
        if job.events.empty() and job.collected:
            sleep(min(COLLECT_EVERY * (1 + job.share.others), MOST_BETWEEN))
        while True:
            try:
                item = job.events.get(timeout=every)
            except Empty:
                self._batcher.revive()
                if on_wait is not None and job.work is None and not job.done.is_set():
                    on_wait(self._batcher.waiting(job))
                continue
            job.collected_at = monotonic()
            job.collected = True
            return item

    def close(self, timeout: float = 30.0) -> None:
        """Cancel what is left of the request, and wait until it has given back what it held. Twice is harmless."""
        if not self._job.done.is_set():
            self._batcher.cancel(self._job)
            until = monotonic() + timeout
            while not self._job.done.wait(0.5) and monotonic() < until:
                self._batcher.revive()


@dataclass(eq=False, slots=True)
class _Job:
    """A request inside the batcher. `work` is None until it is admitted."""

    start: Callable[[Share], Work]
    models: Mapping[str, PagedModel]
    blocks: list[tuple[PagedModel, int]]
    stop: threading.Event | None
    merged_tokens: int
    share: Share = field(default_factory=Share)
    events: SimpleQueue = field(default_factory=SimpleQueue)
    done: threading.Event = field(default_factory=threading.Event)
    work: Work | None = None
    pending: Forward | None = None
    served_at: int = 0
    admitted_at: float = 0.0
    collected_at: float = field(default_factory=monotonic)
    collected: bool = False
    unwanted: bool = False
    cancelled: bool = False
    error: BaseException | None = None
    result: Any = None

    def stopping(self) -> bool:
        return self.unwanted or (self.stop is not None and self.stop.is_set())


class Batcher:
    """Runs requests together on the models they name.

    At most `most_active` requests run at a time, `queued` more wait in the order in which they came. A request is
    admitted when the cache blocks that it could need at worst fit beside those promised to the others, so that no
    forward ever finds the cache full; `make_room(model, blocks)` is called before, and must see to it that all else
    holds at most `blocks` blocks of the model. Both run in the engine's thread, as do all generators.

    A forward that fails is repeated request by request, and only those fail whose own forward does. Should the engine's
    thread itself die, the requests it had are failed and another thread goes on.
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
        self._queue: deque[_Job] = deque()
        self._active: list[_Job] = []
        self._reserved: dict[PagedModel, int] = {}
        self._closed = False
        self._turn = 0
        self._target_seconds = 0.0
        self._target_tokens = 0
        self._request_seconds: float | None = None
        self._counts = dict.fromkeys(("admitted", "finished", "failed", "cancelled", "restarts"), 0)
        self._thread: threading.Thread | None = None

    # For consumers, from any thread

    def submit(
        self,
        start: Callable[[Share], Work],
        models: Mapping[str, PagedModel],
        *,
        blocks: Mapping[PagedModel, int] | None = None,
        stop: threading.Event | None = None,
        first: bool = False,
        merged_tokens: int = MERGED_TOKENS,
    ) -> Ticket:
        """Ask for a request to be run: `start` is called in the engine's thread and gives its generator, which yields
        Forwards (naming one of `models`; answered with a Reply) and, as anything else, events for the consumer.

        `blocks` are the most cache blocks it can come to hold of each model. `first` puts it before those that wait
        already. Its forwards are merged with those of others up to `merged_tokens` in all; larger ones, and with 0
        all, are run alone. Raises Busy when the queue is full, CacheFull when it could never fit, RequestFailed when
        the batcher is closed.
        """
        needed = list((blocks or {}).items())
        for model, count in needed:
            limit = model.pool.limit
            if limit is not None and count > limit:
                raise CacheFull(
                    f"This needs {count * model.block_size} tokens of KV cache; there are {limit * model.block_size}."
                )
        job = _Job(start, models, needed, stop, merged_tokens)
        with self._wake:
            if self._closed:
                raise RequestFailed("The models have been closed.")
            if len(self._queue) >= self.queued:
                raise Busy(f"{len(self._queue)} requests are waiting already; try again in a moment.")
            if first:
                self._queue.appendleft(job)
            else:
                self._queue.append(job)
            self._start_thread()
            self._wake.notify()
        return Ticket(self, job)

    def cancel(self, job: _Job) -> None:
        with self._wake:
            job.unwanted = True
            self._wake.notify()

    def waiting(self, job: _Job) -> Waiting:
        """Where in the queue a request is, 0 when it is at work, and how long that may take at the measured rate."""
        with self._wake:
            place = next((at for at, other in enumerate(self._queue, 1) if other is job), 0)
            seconds = self._request_seconds
            active = len(self._active)
        return Waiting(place, None if seconds is None else place * seconds / max(active, 1))

    @property
    def load(self) -> Load:
        with self._wake:
            return Load(len(self._active), len(self._queue), **self._counts)

    def revive(self) -> None:
        """Start another thread if the engine's has died; the requests that it had fail."""
        with self._wake:
            if self._thread is None or self._thread.is_alive() or self._closed:
                return
            self._drop_active(RequestFailed("The engine had to be restarted during this request; ask again."))
            self._counts["restarts"] += 1
            self._thread = None
            self._start_thread()

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
            while self._queue:
                self._end(self._queue.popleft(), cancelled=True)

    # The engine's thread

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()

    def _main(self) -> None:
        while True:
            try:
                self._loop()
                return
            except Exception as error:
                log.error("The engine's loop failed and goes on without the requests it had.", exc_info=error)
                with self._wake:
                    self._drop_active(RequestFailed("The engine had to be restarted during this request; ask again."))
                    self._counts["restarts"] += 1

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._closed and not self._queue and not self._active:
                    self._wake.wait()
                if self._closed:
                    return
            self.step()

    def step(self) -> None:
        """One turn: let requests leave and join, then run what waits for the draft, then what waits for the target."""
        self._sweep()
        if self._queue:
            self._admit()
        ready = [job for job in self._active if job.events.qsize() <= UNDELIVERED]
        if not ready:
            if self._active:
                with self._wake:
                    self._wake.wait(0.05)
            return
        self._run_drafts(ready)
        self._run_targets(ready)

    def _sweep(self) -> None:
        for job in [job for job in self._active if job.stopping()]:
            self._leave(job, cancelled=True)
        for job in self._active:
            if job.events.qsize() > UNDELIVERED and monotonic() - job.collected_at > ABANDONED_AFTER:
                self._leave(job, cancelled=True)
                break
        if self._queue:
            with self._wake:
                gone = [job for job in self._queue if job.stopping()]
                for job in gone:
                    self._queue.remove(job)
            for job in gone:
                self._end(job, cancelled=True)

    def _admit(self) -> None:
        while len(self._active) < self.most_active:
            with self._wake:
                if not self._queue or not self._fits(self._queue[0]):
                    break
                job = self._queue.popleft()
                for model, count in job.blocks:
                    self._reserved[model] = self._reserved.get(model, 0) + count
                self._active.append(job)
                self._counts["admitted"] += 1
            job.admitted_at = perf_counter()
            try:
                for model, _ in job.blocks:
                    if self._make_room is not None and model.pool.limit is not None:
                        self._make_room(model, model.pool.limit - self._reserved[model])
                if len(self._active) > 1:
                    job.share.rows = self._target_tokens
                job.work = job.start(job.share)
            except Exception as error:
                self._leave(job, error)
                continue
            self._resume(job, None)
        others = len(self._active) - 1
        for job in self._active:
            share = job.share
            share.others = others
            if others > share.most_others:
                share.most_others = others

    def _fits(self, job: _Job) -> bool:
        return all(
            model.pool.limit is None or self._reserved.get(model, 0) + count <= model.pool.limit
            for model, count in job.blocks
        )

    def _run_drafts(self, ready: list[_Job]) -> None:
        """Draft until nobody waits for it, or those that wait for the target have waited as long as it takes."""
        begun = perf_counter()
        while True:
            waiting = [job for job in ready if job.pending is not None and job.pending.model == "draft"]
            if not waiting:
                return
            for model, jobs in _by_model(waiting):
                for batch in _packed(jobs, MERGED_TOKENS):
                    self._forward(model, batch)
            if (
                len(waiting) < len(ready)
                and perf_counter() - begun > self._target_seconds
                and any(job.pending is not None and job.pending.model != "draft" for job in ready)
            ):
                return
            # A stop is honoured between two draft tokens as well.
            for job in waiting:
                if job.pending is not None and job.stopping():
                    self._leave(job, cancelled=True)

    def _run_targets(self, ready: list[_Job]) -> None:
        waiting = [job for job in ready if job.pending is not None and job.pending.model != "draft"]
        if len(waiting) == 1:
            before = perf_counter()
            [job] = waiting
            self._forward(job.models[job.pending.model], waiting)
            self._target_seconds = perf_counter() - before
            return
        for model, jobs in _by_model(waiting):
            small = [job for job in jobs if _tokens(job) <= job.merged_tokens]
            large = [job for job in jobs if _tokens(job) > job.merged_tokens]
            before = perf_counter()
            for batch in _packed(small, min((job.merged_tokens for job in small), default=0)):
                self._forward(model, batch)
            if large:
                # One at a time, the one that was not served for longest: a long prompt must not hold up the others.
                self._forward(model, [min(large, key=lambda job: job.served_at)])
            self._target_seconds = perf_counter() - before

    def _forward(self, model: PagedModel, batch: list[_Job]) -> None:
        """Run one forward for these requests, and resume each with its part of it before the model runs again."""
        self._turn += 1
        begun = perf_counter()
        try:
            logits = model.forward([job.pending.run for job in batch])
        except Exception as error:
            if len(batch) == 1:
                log.error("A forward failed; the request ends.", exc_info=error)
                self._leave(batch[0], error)
                return
            log.warning("A forward of %d requests failed; each is run alone.", len(batch), exc_info=error)
            for job in batch:
                self._forward(model, [job])
            return
        seconds = perf_counter() - begun
        run = batch[0].pending.run
        total = max(sum(map(_tokens, batch)), 1 if run.lone else run.sequence.min_tokens)
        if batch[0].pending.model != "draft":
            self._target_tokens = total
        for job, part in zip(batch, logits, strict=True):
            job.served_at = self._turn
            if job.pending.model != "draft":
                job.share.rows = total - _tokens(job)
            job.pending = None
            self._resume(job, Reply(part, seconds, total, job is batch[0]))

    def _resume(self, job: _Job, reply: Reply | None) -> None:
        """Let the request go on until it needs a forward or ends."""
        send, put = job.work.send, job.events.put
        try:
            event = send(reply)
            while type(event) is not Forward:
                put(event)
                event = send(None)
            job.pending = event
        except StopIteration as done:
            job.result = done.value
            self._leave(job)
        except Exception as error:
            log.error("A request failed.", exc_info=error)
            self._leave(job, error)

    # Ends

    def _leave(self, job: _Job, error: BaseException | None = None, *, cancelled: bool = False) -> None:
        """An active request ends: it gives back what it holds and is no longer counted."""
        with self._wake:
            if job not in self._active:
                return
            self._active.remove(job)
            for model, count in job.blocks:
                self._reserved[model] -= count
        if not cancelled and error is None:
            took = perf_counter() - job.admitted_at
            known = self._request_seconds
            self._request_seconds = took if known is None else 0.8 * known + 0.2 * took
        self._end(job, error, cancelled=cancelled)

    def _end(self, job: _Job, error: BaseException | None = None, *, cancelled: bool = False) -> None:
        job.pending = None
        if job.work is not None:
            try:
                job.work.close()
            except Exception as closing:
                log.error("A request failed while it was ended.", exc_info=closing)
        job.error = error
        job.cancelled = cancelled
        with self._wake:
            self._counts["cancelled" if cancelled else "failed" if error is not None else "finished"] += 1
        job.done.set()
        job.events.put(_END)

    def _drop_active(self, error: BaseException | None) -> None:
        for job in list(self._active):
            self._leave(job, error, cancelled=error is None)


def _tokens(job: _Job) -> int:
    """Tokens that the waiting forward of a request runs."""
    return len(job.pending.run.tokens)


def _by_model(jobs: list[_Job]) -> list[tuple[PagedModel, list[_Job]]]:
    grouped: dict[PagedModel, list[_Job]] = {}
    for job in jobs:
        grouped.setdefault(job.models[job.pending.model], []).append(job)
    return list(grouped.items())


def _packed(jobs: list[_Job], tokens: int) -> list[list[_Job]]:
    """The requests in batches of at most `tokens` tokens, in order; one with more is a batch of its own."""
    batches: list[list[_Job]] = []
    room = -1
    for job in jobs:
        size = _tokens(job)
        if size > room:
            batches.append([])
            room = tokens
        batches[-1].append(job)
        room -= size
    return batches
