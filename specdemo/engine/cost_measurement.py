"""Measures what the forwards of compiled models cost here, beside other work if need be, for their
cost models."""

import math
import os
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import count
from time import perf_counter, process_time

import numpy as np

from .cache import BlockPool, KVSequence
from .cost_model import LARGEST
from .forwards import PREFILL_CHUNK, Head, Model, Run

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, LARGEST)
"""Numbers of tokens whose costs are measured."""

FAR_CONTEXT, FAR_SIZES = 512, (2, LARGEST)
"""Tokens of the context in which the cost of attention is measured, and of forwards there; small
models hold 1,024. A single token may run in another way."""

MEASURED_TOKENS = FAR_CONTEXT + LARGEST  # of the longest sequence that is measured

MIN_ATTEMPTS, MAX_SECONDS = 3, 10.0
"""Attempts of a measurement; it goes on for so many seconds while other work disturbs it. The first
attempts compile."""

PREEMPTIONS, BUSY_SHARE, MIN_SHARE = 2, 0.9, 0.5
"""A forward is disturbed if its threads were preempted oftener than this each, and used less than
BUSY_SHARE of their time. Two threads: 0 to 3 times and 0.97 to 1.0 on a free machine, 6 to 1,400
times and 0.2 to 0.86 beside other work. Long forwards are preempted oftener on a free one too. One
preemption can make a step of a third of a millisecond sixty times as long; so a forward is also
disturbed if all threads together used less than MIN_SHARE of its time."""

TASKS = "/proc/{}/task"  # where Linux describes the threads of a process


def learn_costs(model: Model, other: Model | None, rows: int | None = None) -> Generator[None]:
    """Measure the costs of `model`: forwards of each size, in turn against drift. A forward of the
    pair's `other` model comes before each, as in decoding. `rows` rows of logits are computed
    (None: all)."""
    with ExitStack() as sequences:
        sequence = sequences.enter_context(model.new_sequence())
        forward = partial(_forward, model, sequence, rows)
        between: Callable[[], object] = nullcontext  # does nothing
        if other is not None:
            beside = sequences.enter_context(other.new_sequence())
            between = partial(_forward, other, beside, 1, 2)
        near, calm = yield from _fastest(forward, between, SIZES, model.threads)
        while (missing := FAR_CONTEXT - sequence.length) > 0:
            model.forward([Run(sequence, [1] * min(PREFILL_CHUNK, missing), 1)])
            yield
        far, still = yield from _fastest(forward, between, FAR_SIZES, model.threads)
    model.costs.learn(near, _attention(near, far), lasting=calm and still)


def learn_step(head: Head, target: Model) -> Generator[None]:
    """Measure the first step of a chain: a forward of the `target` comes before each."""
    states = np.zeros((1, head.states_width), np.float32)
    step = Run(KVSequence(BlockPool(0), 1), [0], 1, stepwise=True, states=states)
    with target.new_sequence() as sequence:
        between = partial(_forward, target, sequence, 1, 1)
        seconds, calm = yield from _fastest(
            lambda _: head.forward([step]), between, (1,), target.threads
        )
    head.costs.learn(seconds, lasting=calm)


def _forward(model: Model, sequence: KVSequence, rows: int | None, size: int) -> None:
    length = sequence.length
    model.forward([Run(sequence, [1] * size, rows or size, stepwise=True)])
    sequence.truncate(length)


def _attention(near: dict[int, float], far: dict[int, float]) -> float:
    """Seconds that a token of context adds to a row: what FAR_CONTEXT tokens add to the rows that
    the larger size in `far` has more than the smaller one."""
    few, many = min(far), max(far)
    added = far[many] - near[many] - (far[few] - near[few])
    return max(added / (many - few) / FAR_CONTEXT, 0.0)


def _fastest(
    forward: Callable[[int], object],
    between: Callable[[], object],
    sizes: tuple[int, ...],
    threads: int,
) -> Generator[None, None, tuple[dict[int, float], bool]]:
    """The least seconds of forwards of these sizes, and whether each was once measured undisturbed.
    Before each comes one of a single token, since some instances take longer where the size
    changes, and `between`. A disturbed one counts only if no other was measured: other work can
    make a forward three times as long."""
    best = dict.fromkeys(sizes, (True, math.inf))
    spent = 0.0
    for attempt in count(1):
        for size in best:
            before = perf_counter()
            forward(1)
            between()
            best[size] = min(best[size], _timed(forward, size, threads))
            spent += perf_counter() - before
            yield  # a request waits for a step: with billions of weights two forwards are enough
        calm = not any(disturbed for disturbed, _ in best.values())
        if attempt >= MIN_ATTEMPTS and (calm or spent > MAX_SECONDS):
            break
    return {size: seconds for size, (_, seconds) in best.items()}, calm


def _timed(forward: Callable[[int], object], size: int, threads: int) -> tuple[bool, float]:
    """Whether other work disturbed a forward of `size` tokens, and its seconds."""
    preempted, used, before = _preempted(), process_time(), perf_counter()
    forward(size)
    seconds, used = perf_counter() - before, process_time() - used
    idle = used < BUSY_SHARE * threads * seconds
    often = _preempted() - preempted > PREEMPTIONS * threads
    return idle and often or used < MIN_SHARE * seconds, seconds


def _preempted() -> int:
    """How often the system has taken a processor away from a thread of this process."""
    try:
        import resource
    except ImportError:  # Windows: no measurement counts as disturbed
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def waiting_times(process: int | str = "self") -> Counter[str]:
    """Nanoseconds in which each thread of a process waited for a processor so far; none where the
    system does not tell. Later ones less these (`-`) are of the threads that still run."""
    waited: Counter[str] = Counter()
    tasks = TASKS.format(process)
    for thread in os.listdir(tasks) if os.path.isdir(tasks) else ():
        path = f"{tasks}/{thread}/schedstat"
        # A thread that has just ended has none.
        with suppress(OSError, ValueError), open(path, "rb", buffering=0) as times:
            waited[thread] = int(times.read().split()[1])
    return waited
