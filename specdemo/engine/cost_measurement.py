"""Measures what the forwards of compiled models cost here, beside other work if need be, for their
cost models."""

import math
import statistics
from collections.abc import Callable, Generator
from contextlib import ExitStack
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np

from .cost_model import LARGEST
from .draft_head import DraftHead
from .messages import PREFILL_CHUNK, HeadStep, Model, Run

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, LARGEST)
"""Numbers of tokens whose costs are measured, and to which forwards may be padded."""

FAR_CONTEXT = 512
"""Tokens of the context in which the cost of attention is measured; small models hold 1,024."""

LEAST_ATTEMPTS, MOST_ATTEMPTS, MOST_SECONDS = 3, 9, 10.0
"""Of a measurement that other work disturbs; the first attempts compile."""

PREEMPTIONS, BUSY_SHARE = 2, 0.9
"""A forward is disturbed if its threads were preempted oftener than this each, and used less than
this share of their time. Two threads: 0 to 3 times and 0.97 to 1.0 on a free machine, 6 to 1,400
times and 0.2 to 0.86 beside other work. Long forwards are preempted oftener on a free one too."""

STEADY_FORWARDS = 24
"""Forwards in a row after which the weights of an instance are in the processor's cache, if they
fit there: one token took 8.4 ms at first and 6.5 at the end, three 9.7 and 8.6. Autoregressive
decoding runs like this."""


class Seconds(NamedTuple):
    """The least seconds of a forward by its number of tokens, if the forward before had another
    number (`changed`), and the same one (`stayed`). `calm`: each was once measured undisturbed."""

    changed: dict[int, float]
    stayed: dict[int, float]
    calm: bool


def learn_costs(
    model: Model, other: Model | None, *, guarded: bool = True, rows: int | None = None
) -> Generator[None]:
    """Measure the costs of `model`: forwards of each size, in turn against drift. A forward of the
    pair's `other` model comes before each, as in decoding. `rows` rows of logits are computed
    (None: all). Where single tokens are padded to two, which `guarded` ones are not, one token
    costs what two do."""
    fixed = model.settings.fixed_shapes if rows is None else ()
    sizes = sorted({1, *fixed, LARGEST} if fixed else SIZES)
    inner = sizes[1:-1]  # a single token, and LARGEST beside fixed shapes, run in another way
    few, many = (inner[0], inner[-1]) if len(inner) > 1 else (sizes[0], sizes[-1])
    with ExitStack() as sequences:
        sequence = sequences.enter_context(model.new_sequence())
        beside = None if other is None else sequences.enter_context(other.new_sequence())

        def forward(size: int) -> None:
            length = sequence.length
            run = Run(sequence, [1] * size, rows or size, stepwise=True, unpadded=True)
            model.forward([run])
            sequence.truncate(length)

        def between() -> None:
            if other is not None and beside is not None:
                other.forward([Run(beside, [1, 1], 1, stepwise=True)])
                beside.truncate(0)

        near = yield from _fastest(forward, between, sizes, model.threads)
        steady = dict(near.stayed)
        for size in fixed:
            for _ in range(STEADY_FORWARDS):
                before = perf_counter()
                forward(size)
                steady[size] = min(perf_counter() - before, steady[size])
                yield
        while (missing := FAR_CONTEXT - sequence.length) > 0:
            model.forward([Run(sequence, [1] * min(PREFILL_CHUNK, missing), 1)])
            yield
        far = yield from _fastest(forward, between, [few, many], model.threads)
    change = statistics.median(near.changed[size] - near.stayed[size] for size in sizes)
    # What the context adds to `many` rows but not to `few`.
    added = far.stayed[many] - near.stayed[many] - (far.stayed[few] - near.stayed[few])
    attention = added / (many - few) / FAR_CONTEXT
    if fixed:  # the instance of any shape has this size for one forward only
        steady[LARGEST] = near.changed[LARGEST]
    if model.least_tokens > 1 and not guarded:
        steady[1] = min(steady[size] for size in sizes if size > 1)
    calm = near.calm and far.calm
    model.costs.learn(steady, max(change, 0.0), max(attention, 0.0), lasting=calm)


def learn_step(head: DraftHead, target: Model) -> Generator[None]:
    """Measure the first step of a chain: a forward of the `target` comes before each."""
    step = HeadStep(np.zeros(head.widths[0], np.float32), None, (0,))
    with target.new_sequence() as sequence:

        def between() -> None:
            target.forward([Run(sequence, [1, 1], 2, stepwise=True)])
            sequence.truncate(0)

        def forward(size: int) -> None:
            head.forward([step] * size)

        seconds = yield from _fastest(forward, between, [1], target.threads)
    head.costs.learn(seconds.stayed, lasting=seconds.calm)


def _fastest(
    forward: Callable[[int], object], between: Callable[[], None], sizes: list[int], threads: int
) -> Generator[None, None, Seconds]:
    """Time forwards of these sizes, each twice in a row, so that the first one changes the size;
    `between` comes before each. A disturbed one counts only if no other was measured: other work
    can make a forward three times as long."""
    kinds = [(size, same) for size in sizes for same in (False, True)]
    calm: dict[tuple[int, bool], float] = {}
    disturbed: dict[tuple[int, bool], float] = {}
    spent = 0.0
    for attempt in range(MOST_ATTEMPTS):
        if attempt >= LEAST_ATTEMPTS and (len(calm) == len(kinds) or spent > MOST_SECONDS):
            break
        for kind in kinds:
            between()
            size, same = kind
            seconds, quiet = _timed(forward, size, threads)
            spent += seconds
            least = calm if quiet else disturbed
            least[kind] = min(seconds, least.get(kind, math.inf))
            if same:
                yield  # a request waits for a step: with billions of weights two are enough
    known = disturbed | calm
    changed, stayed = ({size: known[size, same] for size in sizes} for same in (False, True))
    return Seconds(changed, stayed, len(calm) == len(kinds))


def _timed(forward: Callable[[int], object], size: int, threads: int) -> tuple[float, bool]:
    """The seconds of a forward of `size` tokens, and whether nothing disturbed it."""
    preempted, used, before = _preempted(), process_time(), perf_counter()
    forward(size)
    seconds, used = perf_counter() - before, process_time() - used
    preempted = _preempted() - preempted
    idle = used < BUSY_SHARE * threads * seconds
    return seconds, not (idle and preempted > PREEMPTIONS * threads)


def _preempted() -> int:
    """How often the system has taken a processor away from a thread of this process; Windows does
    not count that."""
    try:
        import resource
    except ImportError:  # Windows: no measurement counts as disturbed
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
