"""Finds plugin settings with which logits do not depend on how many tokens run together.
Speculative decoding is lossless in practice only with them (docs/reference/numerics.md)."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import openvino as ov

from . import graph
from .checkpoint import Checkpoint, PairFiles, weights_size
from .draft_head import fractions
from .invariance import LEAST_USEFUL, measure_invariance
from .messages import Model, ModelSettings, Taps
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
    tried: list[Properties] = [(_F32, cache, group) for cache in caches]
    # Scales of u8 depend on the other tokens in a block, with and without _NO_DYNAMIC.
    return tried if kv_cache == "u8" else [*tried, (_F32, caches[-1], _NO_DYNAMIC)]


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
    hidden = None
    if files.head is not None:
        layers = files.head_layers
        hidden = Taps(layers, () if layers else fractions(files.head, core))
    settings = ModelSettings(files.device, (), shapes, hidden)
    if exact and known is not None:
        tried, invariance = [known.properties], known.invariance
    else:
        tried = candidates(source, files.device, files.kv_cache, exact, core)
        invariance = Invariance(0, 0.0, 0, merging=True, chunks=True)
    model: Model
    for properties in tried:
        model = None  # type: ignore[assignment] # freed first: two may not fit into memory
        model = open_model(source, replace(settings, properties=properties), core)
        if exact and known is None:
            invariance = measure_invariance(model)
            if invariance.tokens >= LEAST_USEFUL and (invariance.guard or not invariance.one_token):
                break
    return model, invariance


def fixed_shapes(
    source: Path | Checkpoint, shapes: tuple[int, ...], available: int
) -> tuple[int, ...]:
    """The first of these `shapes`, as many as `available` bytes of memory allow; none for weights
    outside FIXED_SHAPE_WEIGHTS and on torch devices."""
    size = weights_size(source)
    if not isinstance(source, Path) or size not in FIXED_SHAPE_WEIGHTS:
        return ()
    return shapes[: int(available * INSTANCE_SHARE / (size * INSTANCE_BYTES))]
