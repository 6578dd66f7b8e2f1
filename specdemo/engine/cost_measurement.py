"""Measures what the forwards of compiled models cost here, beside other work if need be, for their
cost models."""

import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import count, product
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np

from .cache import BlockPool, KVSequence
from .cost_model import LARGEST
from .messages import PREFILL_CHUNK, Head, Model, Run

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, LARGEST)
"""Numbers of tokens whose costs are measured, and to which forwards may be padded."""

FAR_CONTEXT = 512
"""Tokens of the context in which the cost of attention is measured; small models hold 1,024."""

MIN_ATTEMPTS, MAX_SECONDS = 3, 10.0
"""Attempts of a measurement; it goes on for so many seconds while other work disturbs it. The first
attempts compile."""

PREEMPTIONS, BUSY_SHARE, MIN_SHARE = 2, 0.9, 0.5
"""A forward is disturbed if its threads were preempted oftener than this each, and used less than
BUSY_SHARE of their time. Two threads: 0 to 3 times and 0.97 to 1.0 on a free machine, 6 to 1,400
times and 0.2 to 0.86 beside other work. Long forwards are preempted oftener on a free one too. One
preemption can make a step of a third of a millisecond sixty times as long; so a forward is also
disturbed if all threads together used less than MIN_SHARE of its time."""

STEADY_FORWARDS = 24
"""Forwards in a row after which the weights of an instance are in the processor's cache, if they
fit there: one token took 8.4 ms at first and 6.5 at the end, three 9.7 and 8.6. Autoregressive
decoding runs like this."""

TASKS = "/proc/self/task"  # where Linux describes the threads of this process


class Seconds(NamedTuple):
    """The least seconds of a forward by its number of tokens, if the forward before had another
    number (`changed`), and the same one (`same`). `calm`: each was once measured undisturbed."""

    changed: dict[int, float]
    same: dict[int, float]
    calm: bool


def learn_costs(
    model: Model, other: Model | None, *, guarded: bool = True, rows: int | None = None
) -> Generator[None]:
    """Measure the costs of `model`: forwards of each size, in turn against drift. A forward of the
    pair's `other` model comes before each, as in decoding. `rows` rows of logits are computed
    (None: all). Without a guard, one token is padded to two and costs the same."""
    fixed = model.settings.fixed_shapes if rows is None else ()
    sizes = sorted({1, *fixed, LARGEST} if fixed else SIZES)
    with ExitStack() as sequences:
        sequence = sequences.enter_context(model.new_sequence())
        forward = partial(_forward, model, sequence, rows, unpadded=True)
        between: Callable[[], object] = nullcontext  # does nothing
        if other is not None:
            beside = sequences.enter_context(other.new_sequence())
            between = partial(_forward, other, beside, 1, 2)
        near = yield from _fastest(forward, between, sizes, model.threads)
        steady = yield from _steady(forward, near, fixed)
        if model.min_tokens > 1 and not guarded:
            steady[1] = min(steady[size] for size in sizes if size > 1)
        while (missing := FAR_CONTEXT - sequence.length) > 0:
            model.forward([Run(sequence, [1] * min(PREFILL_CHUNK, missing), 1)])
            yield
        # A single token, and LARGEST beside fixed shapes, run in another way.
        ends = sizes[1:-1] if len(sizes) > 3 else sizes
        far = yield from _fastest(forward, between, [ends[0], ends[-1]], model.threads)
    change = statistics.median(near.changed[size] - near.same[size] for size in sizes)
    attention = _attention(near.same, far.same)
    calm = near.calm and far.calm
    model.costs.learn(steady, max(change, 0.0), attention, lasting=calm)


def learn_step(head: Head, target: Model) -> Generator[None]:
    """Measure the first step of a chain: a forward of the `target` comes before each."""
    states = np.zeros((1, head.states_width), np.float32)
    step = Run(KVSequence(BlockPool(0), 1), [0], 1, stepwise=True, states=states)
    with target.new_sequence() as sequence:
        between = partial(_forward, target, sequence, 2, 2)
        seconds = yield from _fastest(lambda _: head.forward([step]), between, [1], target.threads)
    head.costs.learn(seconds.same, lasting=seconds.calm)


def _forward(
    model: Model, sequence: KVSequence, rows: int | None, size: int, unpadded: bool = False
) -> None:
    length = sequence.length
    model.forward([Run(sequence, [1] * size, rows or size, stepwise=True, unpadded=unpadded)])
    sequence.truncate(length)


def _steady(
    forward: Callable[[int], object], near: Seconds, fixed: tuple[int, ...]
) -> Generator[None, None, dict[int, float]]:
    """The seconds by size where the size stays: for `fixed` shapes the least of STEADY_FORWARDS."""
    steady = dict(near.same)
    for size in fixed:
        for _ in range(STEADY_FORWARDS):
            before = perf_counter()
            forward(size)
            steady[size] = min(perf_counter() - before, steady[size])
            yield
    if fixed:  # the dynamic instance has this size for one forward only
        steady[LARGEST] = near.changed[LARGEST]
    return steady


def _attention(near: dict[int, float], far: dict[int, float]) -> float:
    """Seconds that a token of context adds to a row: what FAR_CONTEXT tokens add to the rows that
    the larger size in `far` has more than the smaller one."""
    few, many = min(far), max(far)
    added = far[many] - near[many] - (far[few] - near[few])
    return max(added / (many - few) / FAR_CONTEXT, 0.0)


def _fastest(
    forward: Callable[[int], object], between: Callable[[], object], sizes: list[int], threads: int
) -> Generator[None, None, Seconds]:
    """Time forwards of these sizes, each twice in a row, so that the first one changes the size;
    `between` comes before each. A disturbed one counts only if no other was measured: other work
    can make a forward three times as long."""
    best = dict.fromkeys(product(sizes, (False, True)), (True, math.inf))
    spent = 0.0
    for attempt in count(1):
        for size, same in best:
            before = perf_counter()
            between()
            timed = _timed(forward, size, threads)
            spent += perf_counter() - before
            best[size, same] = min(best[size, same], timed)
            if same:
                yield  # a request waits for a step: with billions of weights two are enough
        calm = not any(disturbed for disturbed, _ in best.values())
        if attempt >= MIN_ATTEMPTS and (calm or spent > MAX_SECONDS):
            break
    changed, unchanged = ({size: best[size, same][1] for size in sizes} for same in (False, True))
    return Seconds(changed, unchanged, calm)


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


def waiting_times() -> Counter[str]:
    """Nanoseconds in which each thread of this process waited for a processor so far; none where
    the system does not tell. Later ones less these (`-`) are of the threads that still run."""
    waited: Counter[str] = Counter()
    for thread in os.listdir(TASKS) if os.path.isdir(TASKS) else ():
        path = f"{TASKS}/{thread}/schedstat"
        # A thread that has just ended has none.
        with suppress(OSError, ValueError), open(path, "rb", buffering=0) as times:
            waited[thread] = int(times.read().split()[1])
    return waited
