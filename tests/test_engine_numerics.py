"""What is measured of rounding at load holds afterwards: real (tiny) models, every setting. And the
products of processors without VNNI."""

from __future__ import annotations

import dataclasses
import importlib.util
from contextlib import ExitStack, closing
from itertools import cycle
from time import perf_counter

import numpy as np
import openvino as ov
import pytest
from conftest import python
from helpers import until
from openvino import opset13 as ops
from test_engine_heads import write_head
from test_engine_paged import CLOSE, CORE, F32

from specdemo.convert.weights import compressed
from specdemo.engine import cost_measurement, profile
from specdemo.engine import engine as engines
from specdemo.engine.backends import graph, kernels, numerics
from specdemo.engine.backends.numerics import measure_invariance
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.checkpoint import PairFiles, weights_size
from specdemo.engine.cost_model import CostModel
from specdemo.engine.engine import Engine
from specdemo.engine.faults import ModelError
from specdemo.engine.messages import PREFILL_CHUNK, ModelSettings, Run
from specdemo.engine.profile import Invariance, ModelProfile

SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 16, 31, 48, 64)
CONTEXT = 45

SETTINGS = {
    "dynamic quantization": ModelSettings(properties=F32),
    "dynamic quantization, fixed shapes": ModelSettings(properties=F32, fixed_shapes=(1, 2, 4, 8)),
    "floats": dataclasses.replace(CLOSE, fixed_shapes=()),
    "floats, fixed shapes": CLOSE,
    "kernels": dataclasses.replace(CLOSE, properties=(*CLOSE.properties, kernels.PROPERTY)),
    "f16 cache": ModelSettings(properties=(F32[0], ("KV_CACHE_PRECISION", "f16"))),
}


@pytest.fixture(scope="module", params=SETTINGS)
def measured(request, tiny_llama_pair):
    """A model in one setting, and what was measured of it."""
    if request.param == "kernels":
        pytest.importorskip("llvmlite")
    model = PagedModel(tiny_llama_pair.target, SETTINGS[request.param])
    list(model.compiling)
    return model, list(measure_invariance(model))[-1]


def text_of(model, size: int) -> list[int]:
    return np.random.default_rng(5).integers(0, model.vocabulary_size, size).tolist()


def in_pieces(model, size: int, total: int, unpadded: bool = False) -> np.ndarray:
    """Logits of `total` tokens after a context, `size` tokens a forward."""
    text = text_of(model, CONTEXT + total + size)
    rows = []
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, text[:CONTEXT], 1)])
        while sequence.length < CONTEXT + total:
            piece = text[sequence.length : sequence.length + size]
            run = Run(sequence, piece, len(piece), stepwise=True, unpadded=unpadded)
            rows.append(model.forward([run])[0].rows.copy())
    return np.concatenate(rows)[:total]


def test_forwards_of_every_size_up_to_the_measured_one_give_the_same_bits(measured):
    model, invariance = measured
    reference = in_pieces(model, 4, 64)
    for size in (size for size in SIZES if size <= invariance.tokens):
        assert np.array_equal(in_pieces(model, size, 64), reference), size


def test_a_prompt_gets_the_same_bits_whatever_the_lengths_of_its_chunks(measured):
    model, invariance = measured
    assert invariance.chunks
    text, rng, read = text_of(model, 400), np.random.default_rng(3), set()
    for longest in (PREFILL_CHUNK, PREFILL_CHUNK, 30, 8):
        with model.new_sequence() as sequence:
            while sequence.length < len(text):
                size = PREFILL_CHUNK if not read else int(rng.integers(2, longest + 1))
                model.forward([Run(sequence, text[sequence.length :][:size], 0)])
            run = Run(sequence, text[:4], 4, stepwise=True)
            read.add(model.forward([run])[0].rows.tobytes())
    assert len(read) == 1


def test_a_token_by_itself_differs_by_no_more_than_the_guard_allows(measured):
    model, invariance = measured
    apart = np.abs(in_pieces(model, 1, 32, unpadded=True) - in_pieces(model, 4, 32)).max()
    if invariance.one_token == 0:
        assert apart == 0 and invariance.guard is None and model.min_tokens == 1
    elif invariance.tokens:
        allowed = max(profile.GUARD_FACTOR * invariance.one_token, profile.MIN_GUARD)
        assert apart <= allowed / 2 and model.min_tokens == 2


def test_what_is_measured_does_not_depend_on_the_costs_of_the_moment(measured, monkeypatch):
    model, invariance = measured
    monkeypatch.setattr(model, "costs", CostModel())
    model.costs.learn({1: 9.0, 4: 1.0, 64: 2.0})  # so single tokens are padded
    assert list(measure_invariance(model))[-1] == invariance


def test_requests_that_share_a_forward_get_the_bits_that_each_gets_alone(measured):
    model, invariance = measured
    if not invariance.merging:
        pytest.skip("requests do not share forwards here")
    text, runs = text_of(model, 100), []
    with ExitStack() as sequences:
        for size, context in ((3, 45), (1, 10), (8, 70), (1, 33)):
            sequence = sequences.enter_context(model.new_sequence())
            model.forward([Run(sequence, text[:context], 1)])
            runs.append(Run(sequence, text[-size:], size, stepwise=True))
        together = [logits.rows.copy() for logits in model.forward(runs)]
        for run, shared in zip(runs, together, strict=True):
            run.sequence.truncate(run.sequence.length - len(run.tokens))
            assert np.array_equal(model.forward([run])[0].rows, shared)


@pytest.mark.parametrize(
    ("columns", "group", "shared"),
    [(128, 32, "32"), (128, 64, "64"), (128, 128, "128"), (576, 576, "64"), (80, 80, "32")],
)
def test_activations_share_a_scale_at_most_where_weights_do(tmp_path, columns, group, shared):
    """With larger groups forwards with 4-bit weights took 1.4 to 1.8 times as long. The group
    follows from the model alone: the answers of a target are the same on every start."""
    integers = ov.Tensor(ov.Type.u4, ov.Shape([8, columns // group, group]))
    scales = np.ones((8, columns // group, 1), np.float16)
    matrix = compressed(integers, scales, np.full_like(scales, 8, np.uint8))
    given = ops.parameter([-1, columns], ov.Type.f32)
    layer = ops.matmul(given, matrix, False, True)
    product = ops.matmul(layer, np.ones((4, 8), np.float32), False, True)
    ov.save_model(ov.Model([ops.result(product)], [given], "product"), tmp_path / "model.xml")
    tried = numerics.candidates(tmp_path / "model.xml", "CPU", "auto", True, CORE)
    sizes = [dict(properties)["DYNAMIC_QUANTIZATION_GROUP_SIZE"] for properties in tried]
    assert sizes == [shared, shared, "0"]


@pytest.mark.parametrize(("six", "shapes"), [(1.2, "FIXED_SHAPES"), (2.0, "FINE_SHAPES")])
def test_where_each_row_is_known_to_cost_much_the_shapes_are_finer(
    six, shapes, tiny_llama_pair, monkeypatch
):
    monkeypatch.setattr(numerics, "FIXED_SHAPE_WEIGHTS", range(1 << 40))
    known = ModelProfile(F32, Invariance(64, 0.0, 2), {1: 1.0, 6: six})
    model, _ = numerics.open_target(PairFiles(tiny_llama_pair.target), CORE, known=known)
    assert model.settings.fixed_shapes == getattr(numerics, shapes)


def undisturbed(forward, size, threads):
    """A forward as on a machine without other work."""
    before = perf_counter()
    forward(size)
    return False, perf_counter() - before


def prepared(pair, folder, available: int, **options) -> tuple[Engine, list[profile.Profile]]:
    """An engine with a draft head and this memory, and the profiles that it remembers."""
    remembered: list[profile.Profile] = []
    options |= {"context_limit": 1024, "available_bytes": lambda: available}
    files = PairFiles(pair.target, head=write_head(folder / "head"))
    engine = Engine(files, remember=remembered.append, **options)
    list(engine.preparing())
    return engine, remembered


@pytest.mark.parametrize(("gigabytes", "shapes"), [(2, 0), (3, 1), (8, 2), (9, 3), (16, 4)])
def test_the_preparation_ends_with_any_amount_of_memory(
    gigabytes, shapes, tiny_llama_pair, tmp_path, monkeypatch
):
    """As many fixed shapes as the embedded target of 135 MB gets. With one or two `learn_costs`
    divided by zero, and no measurement was remembered."""
    monkeypatch.setattr(numerics, "FIXED_SHAPE_WEIGHTS", range(1 << 40))
    monkeypatch.setattr(cost_measurement, "_timed", undisturbed)
    monkeypatch.setattr(CostModel, "record", lambda *_: None)  # a faster forward disproves costs
    available = int(gigabytes * 1e9 * weights_size(tiny_llama_pair.target) / 135e6)
    engine, remembered = prepared(tiny_llama_pair, tmp_path, available, background=False)
    assert engine.target("exact").model.settings.fixed_shapes == numerics.FIXED_SHAPES[:shapes]
    exact, draft = remembered[0].targets["exact"], remembered[0].draft
    assert exact.measured and {1, 16} < exact.costs.keys() and exact.attention >= 0
    assert draft.costs[1] > 0
    engine.close()


def test_a_race_that_need_not_be_measured_waits_for_its_instances_only(
    tiny_llama_pair, tmp_path, monkeypatch
):
    """Without VNNI the costs of Dolly 3B took longer than all that its first token needs."""
    monkeypatch.setattr(numerics, "FIXED_SHAPE_WEIGHTS", range(1 << 40))
    monkeypatch.setattr(cost_measurement, "learn_costs", lambda *_, **__: cycle([None]))
    files = PairFiles(tiny_llama_pair.target, head=write_head(tmp_path / "head"))
    memory = {"context_limit": 1024, "available_bytes": lambda: 1 << 40}
    with closing(Engine(files, background=False, **memory)) as engine:
        list(engine.preparing(measured=False))
        target = engine.target("exact")
        assert len(target.model._fixed) == len(numerics.FIXED_SHAPES) and engine.draft
        assert not target.prepared.is_set()


def test_exact_numerics_are_found_on_this_processor(tiny_llama_pair):
    model, invariance = numerics.open_target(PairFiles(tiny_llama_pair.target), CORE)
    assert invariance.tokens >= numerics.USEFUL_TOKENS
    assert invariance.threads == model.threads > 0
    assert model.min_tokens == invariance.min_tokens


def test_a_setting_that_the_plugin_refuses_is_passed_over(tiny_llama_pair, monkeypatch):
    refused, files = (("KV_CACHE_PRECISION", "u3"),), PairFiles(tiny_llama_pair.target)
    monkeypatch.setattr(numerics, "candidates", lambda *_: [refused, CLOSE.properties])
    assert numerics.open_target(files, CORE)[0].settings.properties == CLOSE.properties
    monkeypatch.setattr(numerics, "candidates", lambda *_: [refused])
    with pytest.raises(ModelError, match="cannot run this model"):
        numerics.open_target(files, CORE)


def test_a_busy_start_is_used_and_not_kept_and_measured_again_when_it_is_quiet(
    tiny_llama_pair, tmp_path, monkeypatch
):
    """The seconds of a step that was preempted once were kept for ever, and the head not asked."""
    monkeypatch.setattr(engines, "REMEASURE_SECONDS", 0.01)
    busy, timed = [True], undisturbed
    monkeypatch.setattr(
        cost_measurement, "_timed", lambda *forward: (busy[0], 60 ** busy[0] * timed(*forward)[1])
    )
    engine, remembered = prepared(tiny_llama_pair, tmp_path, 1 << 40)
    first = remembered[-1]
    assert not first.targets["exact"].costs and not first.draft.costs
    assert engine.draft_step > 0, "for the moment it is used"
    busy[0] = False
    until(lambda: remembered[-1].draft.costs)
    quiet = remembered[-1]
    assert quiet.targets["exact"].measured and quiet.draft.costs[1] < engine.draft_step * 30
    engine.close()


@pytest.mark.parametrize(
    ("seconds", "used", "preempted", "disturbed"),
    [
        (0.02, 0.04, 0, False),
        (0.02, 0.02, 9, True),
        (0.02, 0.039, 9, False),  # a long forward is preempted on a free machine too
        (0.0228, 0.0007, 1, True),  # one preemption in a step of a third of a millisecond
        (0.00035, 0.0003, 0, False),
    ],
)
def test_a_forward_is_believed_by_what_its_threads_used(
    monkeypatch, seconds, used, preempted, disturbed
):
    for name, ends in {
        "perf_counter": [0.0, seconds],
        "process_time": [0.0, used],
        "_preempted": [0, preempted],
    }.items():
        monkeypatch.setattr(cost_measurement, name, iter(ends).__next__)
    assert cost_measurement._timed(lambda size: None, 1, 2) == (disturbed, seconds)


@pytest.mark.parametrize("waiting", [False, True])
def test_the_check_before_the_first_token_ends_by_the_seconds_of_the_processor(
    tiny_llama_pair, tmp_path, monkeypatch, waiting
):
    """A machine busy with other work checks as much. The rest is checked in a quiet moment."""
    monkeypatch.setattr(numerics, "CHECK_SECONDS", 0)
    if waiting:
        monkeypatch.setattr(numerics, "process_time", lambda: 0.0)
    _, begun = numerics.open_target(PairFiles(tiny_llama_pair.target), CORE)
    assert begun.complete == waiting
    assert waiting or begun.tokens == numerics.USEFUL_TOKENS and not begun.merged_tokens
    engine, remembered = prepared(tiny_llama_pair, tmp_path, 1 << 40)
    target, [kept] = engine.target("exact"), remembered[-1].targets.values()
    assert target.invariance == kept.invariance and target.invariance.complete
    assert target.invariance.tokens > numerics.USEFUL_TOKENS
    assert target.policy.limit == target.invariance.draft_limit > begun.draft_limit or waiting
    engine.close()


def test_a_check_goes_on_from_what_an_earlier_start_found(tiny_llama_pair):
    model = PagedModel(tiny_llama_pair.target, CLOSE)
    first, *_, last = measure_invariance(model)
    assert list(measure_invariance(model, first))[-1] == last


@pytest.mark.parametrize(
    ("invariance", "tokens", "guard", "text"),
    [
        (Invariance(64, 0.0, 2, True), 1, None, "on 2 threads forwards of 1 to 64 tokens"),
        (Invariance(64, 4e-5, 2, True), 2, 1e-3, "differs by up to 4e-05: near"),
        (Invariance(64, 5e-4, 2), 2, 8e-3, "requests do not share forwards"),
        (Invariance(64, 0.5, 8), 2, None, "differs by up to 0.5: which is padded to two"),
        (Invariance(0, 0.5, 8), 1, None, "depend on how many tokens run together"),
    ],
)
def test_an_invariance_decides_padding_guard_and_its_text(invariance, tokens, guard, text):
    assert invariance.min_tokens == tokens
    assert invariance.guard == (guard and pytest.approx(guard))
    assert text in str(invariance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "settings"),
    [
        ("AVX2", "floats or kernels"),
        ("AVX2_VNNI", "floats or kernels"),
        ("AVX512_CORE_VNNI", "dynamic and not shapes"),
    ],
)
def test_what_is_measured_holds_with_the_instructions_of_other_processors(isa, settings):
    """oneDNN reads the variable when it is loaded, so in a process of its own. The plugin, which
    does not, asks it for dynamic quantization that it then has not."""
    chosen = f"(every_size or guard_allows) and ({settings})"
    options = ("-q", "-p", "no:cacheprovider", "-n", "0", "-k", chosen)
    done = python("-m", "pytest", __file__, *options, ONEDNN_MAX_CPU_ISA=isa)
    assert done.returncode == 0, done.stdout[-3000:]


# Products of the engine's own kernels: right, and with the same bits for any number of rows.

ROWS = (1, 2, 3, 4, 5, 8, 9)


@pytest.fixture(scope="module")
def code():
    pytest.importorskip("llvmlite")
    return kernels.shared()


def random_weights(rng, bits: int, shape: tuple[int, int], groups: int):
    """Integers [outputs, columns], scales and zeros [outputs, groups]; zero and full range among
    them."""
    low, high = (0, 16) if bits == 4 else (-128, 128)
    stored = rng.integers(low, high, shape)
    stored[0], stored[1] = low, high - 1
    scales = rng.random((shape[0], groups)).astype(np.float16)
    return stored, scales, rng.integers(max(low, -20), 16, scales.shape).astype(np.int8)


def reference(x, stored, scales, zeros, group: int) -> np.ndarray:
    """The product in float64, with activations rounded as the kernels do."""
    apart = x.reshape(len(x), -1, group)
    top = np.abs(apart).max(2)
    factor = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
    rounded = np.rint(apart * factor[..., None]).astype(np.int64)
    count = apart.shape[1] // scales.shape[1]
    scales, zeros = (np.repeat(values, count, 1).astype(np.float64) for values in (scales, zeros))
    sums = np.einsum("rgk,ogk->rog", rounded, stored.reshape(len(stored), -1, group))
    sums = sums - zeros * rounded.sum(2)[:, None]
    return (sums * scales * (top / 127)[:, None]).sum(2)


def tensor_of(kind: str, stored: np.ndarray) -> ov.Tensor:
    """The integers in 4 or 8 bits."""
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(list(stored.shape)))
    raw = stored.astype(np.uint8).reshape(-1)
    graph.raw_bytes(tensor)[:] = (raw[::2] & 15 | raw[1::2] << 4) if "4" in kind else raw
    return tensor


def packed(stored, bits: int, scales, zeros) -> kernels.Matrix | None:
    raw = stored.astype(np.int8)
    if bits == 4:
        raw = (stored[:, ::2] | stored[:, 1::2] << 4).astype(np.uint8)
    return kernels.pack(raw, bits, scales, zeros)


@pytest.mark.parametrize(
    ("bits", "outputs", "columns", "groups"),
    [(4, 32, 256, 2), (4, 48, 96, 3), (4, 16, 8960, 70), (8, 64, 576, 1), (8, 32, 256, 4)],
)
def test_products_are_those_of_numpy_and_do_not_depend_on_rows_and_threads(
    code, bits, outputs, columns, groups
):
    rng = np.random.default_rng(columns)
    weights = random_weights(rng, bits, (outputs, columns), groups)
    matrix = packed(weights[0], bits, *weights[1:])
    assert matrix is not None
    x = rng.standard_normal((max(ROWS), columns), np.float32)
    x[2] = 0
    expected = reference(x, *weights, matrix.group)
    first = None
    for threads in (1, 2, 8):
        code.start(threads)
        for rows in ROWS:
            y = np.full((2, rows, outputs), np.nan, np.float32)
            places = [part.ctypes.data for part in y]
            code.multiply([matrix, matrix], x.ctypes.data, places, rows)
            first = y[0] if first is None else first
            assert np.array_equal(y[0], y[1])
            assert np.array_equal(y[0, 0], first[0])
            assert np.abs(y[0] - expected[:rows]).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("outputs", "columns", "groups"), [(24, 64, 1), (16, 48, 1), (16, 64, 4)])
def test_shapes_that_fill_no_tile_or_group_stay_with_the_plugin(outputs, columns, groups):
    weights = random_weights(np.random.default_rng(0), 8, (outputs, columns), groups)
    assert packed(weights[0], 8, *weights[1:]) is None


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
def test_every_form_of_compressed_weights_gives_the_product_of_their_floats(kind):
    rng, groups = np.random.default_rng(1), 2
    low, high = {"i4": (-8, 8), "u4": (0, 16), "i8": (-128, 128), "u8": (0, 256)}[kind]
    stored = rng.integers(low, high, (32, groups, 64))
    scales = (rng.random((32, groups, 1)) + 0.1).astype(np.float16)
    zeros = None
    values = stored.astype(np.float32)
    if kind[0] == "u":
        zeros = rng.integers(0, high, scales.shape).astype(np.uint8)
        values -= zeros
    tensor = tensor_of(kind, stored)
    x = ops.parameter([-1, 1, 128], ov.Type.f32)
    matrix = compressed(tensor, scales, zeros)
    model = ov.Model([ops.result(ops.matmul(x, matrix, False, True))], [x], "product")
    kernels.use_kernels(model)
    assert any(node.get_type_name() == "Product" for node in model.get_ops())
    compiled = CORE.compile_model(model, "CPU", dict(CLOSE.properties))
    given = rng.standard_normal((3, 1, 128), np.float32)
    exact = given[:, 0] @ (values * scales.astype(np.float32)).reshape(32, 128).T
    assert np.abs(compiled([given])[0][:, 0] - exact).max() < 0.01 * np.abs(exact).max()


def test_equal_products_of_one_input_stay_apart():
    """The plugin would keep one of two that it takes for the same."""
    rng = np.random.default_rng(2)
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    given, tensors, results, expected = rng.standard_normal((2, 1, 64), np.float32), [], [], []
    for kind in ("i8", "i8", "u4", "u4"):
        stored = rng.integers(0, 15, (16, 64))
        tensors.append(tensor_of(kind, stored[:, None]))  # the constants do not keep them
        matrix = compressed(tensors[-1], np.ones((16, 1, 1), np.float16))
        results.append(ops.result(ops.matmul(x, matrix, False, True)))
        expected.append(given[:, 0] @ stored.T)
    model = ov.Model(results, [x], "products")
    kernels.use_kernels(model)
    compiled = CORE.compile_model(model, "CPU", dict(CLOSE.properties))([given])
    for output, exact in zip(compiled.values(), expected, strict=True):
        assert np.abs(output[:, 0] - exact).max() < 0.02 * np.abs(exact).max()


def test_large_models_use_kernels_where_the_processor_has_no_vnni(tiny_llama_pair, monkeypatch):
    xml = tiny_llama_pair.target
    monkeypatch.setattr(kernels, "available", lambda: True)
    own = ModelProfile((kernels.PROPERTY,))
    for least, used in ((numerics.KERNEL_WEIGHTS, False), (1, True)):
        monkeypatch.setattr(numerics, "KERNEL_WEIGHTS", least)
        tried = numerics.candidates(xml, "CPU", "auto", True, CORE)
        assert (kernels.PROPERTY in tried[0]) == used
        assert not any(kernels.PROPERTY in properties for properties in tried[1:])
        assert (numerics.usable(own, xml) is own) == used
        assert (numerics.usable(ModelProfile(), xml) is None) == used


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_a_limit_of_onednn_is_a_processor_without_vnni(code, isa):
    program = "from specdemo.engine.backends import kernels; print(kernels.available())"
    assert python("-c", program, ONEDNN_MAX_CPU_ISA=isa).stdout == "True\n"


def test_without_llvmlite_the_plugin_computes_all(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not kernels.available.__wrapped__()
