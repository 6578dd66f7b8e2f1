"""Finds plugin settings with which logits do not depend on how many tokens run together.
Speculative decoding is lossless in practice only with them (docs/reference/numerics.md)."""

import math
import statistics
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import openvino as ov

from . import graph
from .checkpoint import Checkpoint, PairFiles, weights_size
from .cost_model import LARGEST
from .draft_head import DraftHead, fractions
from .messages import PREFILL_CHUNK, HeadStep, Model, ModelSettings, Run, Taps
from .model import open_model
from .profile import Invariance, Properties, TargetProfile

LARGE_WEIGHTS = 1_000_000_000
"""Bytes of weights from which the KV cache is always f16: half the memory, for little time."""

FIXED_SHAPES, FINE_SHAPES, DRAFT_SHAPES = (6, 1, 3, 12), (4, 1, 2, 12), (2,)
"""Numbers of tokens, the most useful first (docs/results/dropped.md). The 1 is for
autoregressive decoding, whose tokens take a fifth longer in the instance of any shape: with it the
baseline is as fast as it can be. A draft model mostly reads one token, or two after a fully
accepted draft."""

INSTANCE_SHARE, INSTANCE_BYTES = 1 / 16, 1.3
"""Fixed-shape instances take at most this share of the free memory, so 3.5 GB allow one of the
embedded target. Each takes this many bytes for a byte of weights: 170 MB for 135 MB."""

FINE_COST_RATIO = 1.6
"""FINE_SHAPES are for machines on which 6 tokens are known to cost more than this of one."""

FIXED_SHAPE_WEIGHTS = range(20_000_000, 500_000_000)
"""Bytes of weights for which a model gets fixed shapes. For larger ones a change of size
costs little beside a forward; for smaller ones forwards cost little."""

CHECKED_SIZES = {2, 3, 5, 6, 8, 12, 16, 32, 64}
LEAST_USEFUL, CHECK_SECONDS = 8, 8.0
"""The check goes on to larger sizes than LEAST_USEFUL until it has taken CHECK_SECONDS: with 3
billion weights and no VNNI the largest two and their merging took 17 of its 26 s."""

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

STEADY = 24
"""Forwards in a row after which the weights of an instance are in the processor's cache, if they
fit there: one token took 8.4 ms at first and 6.5 at the end, three 9.7 and 8.6. Autoregressive
decoding runs like this."""

_CONTEXT = 40
_REFERENCE = 4
_F32 = ("INFERENCE_PRECISION_HINT", "f32")
GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_NO_DYNAMIC = (GROUP, "0")
LEAST_SHARED, MOST_SHARED = 32, 128  # activations that share a scale; 32 is the plugin's number


def candidates(
    source: Path | Checkpoint, device: str, kv_cache: str, exact: bool, core: ov.Core
) -> list[Properties]:
    """The properties to try for exact numerics, the best first; for fast numerics, the plugin's own
    choice. A `kv_cache` other than "auto" is used as it is. Raises ModelError."""
    if isinstance(source, Checkpoint):
        from . import torch_model

        return [torch_model.properties(device, exact=exact)]
    if not exact:
        return [() if kv_cache == "auto" else (("KV_CACHE_PRECISION", kv_cache),)]
    precisions = ["f16"] if weights_size(source) >= LARGE_WEIGHTS else ["f16", "f32"]
    if kv_cache != "auto":
        precisions = [kv_cache]
    caches = [("KV_CACHE_PRECISION", precision) for precision in precisions]
    group = (GROUP, str(activation_group(graph.read_decoder(core, source))))
    found: list[Properties] = [(_F32, cache, group) for cache in caches]
    # Scales of u8 depend on the other tokens in a block, with and without _NO_DYNAMIC.
    return found if kv_cache == "u8" else [*found, (_F32, caches[-1], _NO_DYNAMIC)]


def activation_group(model: ov.Model) -> int:
    """The number of activations that share a scale: the most that divide the columns of every
    compressed matrix of `model` and are no more than its weights that share one. Larger groups are
    faster; where weights share fewer, the plugin unpacks them to floats, and beyond MOST_SHARED too
    much is rounded. Not timed: the answers of a target must not depend on a near tie."""
    compressed = (ov.Type.u4, ov.Type.i4, ov.Type.u8, ov.Type.i8)
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    shapes = [constant.shape for constant in constants if constant.get_element_type() in compressed]
    # [rows, weights] or [rows, groups, weights]; zero points have one column.
    shared = [shape[-1] for shape in shapes if len(shape) > 1 and shape[-1] > 1]
    return max(math.gcd(MOST_SHARED, *shared), LEAST_SHARED)


def open_target(
    files: PairFiles,
    core: ov.Core,
    exact: bool = True,
    known: TargetProfile | None = None,
    available: int = sys.maxsize,
) -> tuple[Model, Invariance]:
    """Compile a target model with `available` bytes of memory free; gives it and its invariance.
    Fast numerics take the plugin's own setting. `exact` ones take the `known` setting, else the
    first candidate in which forwards of LEAST_USEFUL tokens agree, and single tokens agree or have
    a guard, else the last candidate. Raises ModelError."""
    source = files.target
    costs = known.costs if known else {}
    six = min((costs[size] for size in costs if size >= 6), default=0)
    fine = six > FINE_COST_RATIO * costs.get(1, 0)
    shapes = fixed_shapes(source, FINE_SHAPES if fine else FIXED_SHAPES, available)
    hidden = Taps(fractions=fractions(files.head, core)) if files.head else None
    settings = ModelSettings(files.device, (), shapes, hidden)
    if exact and known is not None:
        tried, found = [known.properties], known.invariance
    else:
        tried = candidates(source, files.device, files.kv_cache, exact, core)
        found = Invariance(0, 0.0, 0, merging=True)
    model: Model
    for properties in tried:
        model = None  # type: ignore[assignment] # freed first: two may not fit into memory
        model = open_model(source, replace(settings, properties=properties), core)
        if exact and known is None:
            found = measure_invariance(model)
            if found.tokens >= LEAST_USEFUL and (found.guard or not found.one_token):
                break
    return model, found


def fixed_shapes(
    source: Path | Checkpoint, shapes: tuple[int, ...], available: int
) -> tuple[int, ...]:
    """The first of these `shapes`, as many as `available` bytes of memory allow; none for weights
    outside FIXED_SHAPE_WEIGHTS and on torch devices."""
    size = weights_size(source)
    if not isinstance(source, Path) or size not in FIXED_SHAPE_WEIGHTS:
        return ()
    return shapes[: int(available * INSTANCE_SHARE / (size * INSTANCE_BYTES))]


def measure_invariance(model: Model) -> Invariance:
    """Run the same made-up text in pieces of one token, of each checked size, and of as many tokens
    as there are threads, then in a forward of several requests, and compare the logits bitwise.
    Sets `model.least_tokens`. Takes a second, with billions of weights about ten."""
    began = perf_counter()
    most = max(CHECKED_SIZES)
    sizes = sorted(CHECKED_SIZES | ({model.threads} & set(range(2, most))))
    text = np.random.default_rng(0).integers(0, model.vocabulary_size, _CONTEXT + most).tolist()
    context, rest = text[:_CONTEXT], text[_CONTEXT:]
    model.least_tokens = 1
    with ExitStack() as held:
        base = held.enter_context(model.new_sequence())
        model.forward([Run(base, context, 1)])

        def in_pieces(size: int, total: int) -> np.ndarray:
            """Logits of the rest, `size` tokens a forward: [total - total % size, vocabulary]."""
            rows = []
            with model.fork(base, _CONTEXT) as sequence:
                for begin in range(0, total - total % size, size):
                    run = Run(sequence, rest[begin : begin + size], size, stepwise=True)
                    rows.append(model.forward([run])[0].rows.copy())
            return np.concatenate(rows)

        reference, reached = in_pieces(_REFERENCE, LEAST_USEFUL), 0
        one_token = float(np.abs(in_pieces(1, LEAST_USEFUL) - reference).max())
        for size in sizes:
            if reached >= LEAST_USEFUL and perf_counter() - began > CHECK_SECONDS:
                break
            # Of larger forwards only the first rows are compared.
            got = in_pieces(size, max(size, LEAST_USEFUL))[:LEAST_USEFUL]
            if not np.array_equal(got, reference[: len(got)]):
                break
            reached = size
        found = Invariance(reached, one_token, model.threads)
        model.least_tokens = found.least_tokens
        if not reached:
            return found
        # Verifications of several requests, and a prompt that begins beside them.
        runs = []
        for length, size in ((_CONTEXT, 2), (21, 1), (9, 5), (0, max(reached - 8, 2))):
            fork = held.enter_context(model.fork(base, length))
            runs.append(Run(fork, rest[:size], size if length else 1, stepwise=bool(length)))
        together = [logits.rows.copy() for logits in model.forward(runs)]
        for run in runs:
            run.sequence.truncate(run.sequence.length - len(run.tokens))
        separate = [model.forward([run])[0].rows.copy() for run in runs]
        return replace(found, merging=all(map(np.array_equal, together, separate)))


def learn_costs(
    model: Model, other: Model | None, *, guarded: bool = True, rows: int | None = None
) -> Generator[None]:
    """Measure the costs of `model`: forwards of each size, in turn against drift and each twice, so
    that the first one changes the size. A forward of the pair's `other` model comes before each, as
    in decoding. `rows` rows of logits are computed (None: all). Where single tokens are padded to
    two, which `guarded` ones are not, one token costs what two do."""
    fixed = model.settings.fixed_shapes if rows is None else ()
    sizes = sorted({1, *fixed, LARGEST} if fixed else SIZES)
    inner = sizes[1:-1]  # a single token, and LARGEST beside fixed shapes, run in another way
    few, many = (inner[0], inner[-1]) if len(inner) > 1 else (sizes[0], sizes[-1])
    with ExitStack() as held:
        sequence = held.enter_context(model.new_sequence())
        beside = None if other is None else held.enter_context(other.new_sequence())

        def forward(size: int) -> None:
            length = sequence.length
            run = Run(sequence, [1] * size, rows or size, stepwise=True, unpadded=True)
            model.forward([run])
            sequence.truncate(length)

        def between() -> None:
            if other is not None and beside is not None:
                other.forward([Run(beside, [1, 1], 1, stepwise=True)])
                beside.truncate(0)

        changed, stayed, calm = yield from _fastest(forward, between, sizes, model.threads)
        steady = dict(stayed)
        for size in fixed:
            for _ in range(STEADY):
                before = perf_counter()
                forward(size)
                steady[size] = min(perf_counter() - before, steady[size])
                yield
        for _ in range(FAR_CONTEXT // PREFILL_CHUNK):
            model.forward([Run(sequence, [1] * PREFILL_CHUNK, 1)])
            yield
        _, far, calm_far = yield from _fastest(forward, between, [few, many], model.threads)
    change = statistics.median(changed[size] - stayed[size] for size in sizes)
    attention = (far[many] - stayed[many] - far[few] + stayed[few]) / (many - few) / FAR_CONTEXT
    if fixed:  # the instance of any shape has this size for one forward only
        steady[LARGEST] = changed[LARGEST]
    if model.least_tokens > 1 and not guarded:
        steady[1] = min(steady[size] for size in sizes if size > 1)
    calm &= calm_far
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

        _, stayed, calm = yield from _fastest(forward, between, [1], target.threads)
    head.costs.learn(stayed, lasting=calm)


def _fastest(
    forward: Callable[[int], object], between: Callable[[], None], sizes: list[int], threads: int
) -> Generator[None, None, tuple[dict[int, float], dict[int, float], bool]]:
    """The least seconds of forwards of these sizes, each after `between`, by whether the forward
    before had another size or the same; and whether each was once measured undisturbed: other work
    can make it three times as long."""
    least: dict[tuple[int, bool, bool], float] = {}
    kinds = [(size, same) for size in sizes for same in (False, True)]
    calm, spent = False, 0.0
    for attempt in range(MOST_ATTEMPTS):
        if attempt >= LEAST_ATTEMPTS and (calm or spent > MOST_SECONDS):
            break
        for size in sizes:
            for same in (False, True):
                between()
                preempted, used, before = _preempted(), process_time(), perf_counter()
                forward(size)
                seconds, used = perf_counter() - before, process_time() - used
                preempted = _preempted() - preempted
                idle = used < BUSY_SHARE * threads * seconds
                disturbed = idle and preempted > PREEMPTIONS * threads
                spent += seconds
                key = size, same, disturbed
                least[key] = min(seconds, least.get(key, math.inf))
            yield  # a request waits for a step: with billions of weights two forwards are enough
        calm = all((*kind, False) in least for kind in kinds)
    found = {kind: least.get((*kind, False)) or least[*kind, True] for kind in kinds}
    changed, stayed = ({size: found[size, same] for size in sizes} for same in (False, True))
    return changed, stayed, calm


def _preempted() -> int:
    """How often the system has taken a processor away from a thread of this process; Windows does
    not count that."""
    try:
        import resource
    except ImportError:  # Windows: no measurement counts as disturbed
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
