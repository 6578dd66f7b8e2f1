"""What is measured of rounding at load holds afterwards: real (tiny) models, every setting. And the
products of processors without VNNI."""

import gc
import importlib.util
import math
import re
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise, product
from time import perf_counter
from unittest.mock import Mock

import numpy as np
import openvino as ov
import pytest
from conftest import python
from helpers import until
from openvino import opset13 as ops
from test_engine_paged import CLOSE, CORE, F32, OWN
from tiny_models import write_head

from specdemo.convert.weights import compressed
from specdemo.engine import cost_measurement, profile
from specdemo.engine import engine as engines
from specdemo.engine.backends import (
    attention,
    forward,
    forward_steps,
    graph,
    kernels,
    numerics,
    tiles,
)
from specdemo.engine.backends.instance import THREADS, RowInstances
from specdemo.engine.backends.numerics import measure_invariance
from specdemo.engine.backends.paged import CACHE, PagedModel
from specdemo.engine.cost_model import CostModel
from specdemo.engine.engine import Engine
from specdemo.engine.faults import CacheFull, ModelError
from specdemo.engine.forwards import PREFILL_CHUNK, ModelSettings, Run
from specdemo.engine.pair_files import PairFiles
from specdemo.engine.profile import Invariance
from tools.compile_kernels import SOURCE, llvm_text

SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 16, 31, 48, 64)
CONTEXT = 45

SETTINGS = {
    "dynamic quantization": ModelSettings(properties=F32),
    "floats": CLOSE,
    "kernels": OWN,
    "f16 cache": ModelSettings(properties=(F32[0], CACHE)),
}


@pytest.fixture(scope="module", params=SETTINGS)
def measured(request, tiny_llama_pair):
    """A model in one setting, and what was measured of it."""
    if "kernels" in request.param:
        pytest.importorskip("llvmlite")
    model = PagedModel(tiny_llama_pair.target, SETTINGS[request.param])
    return model, list(measure_invariance(model))[-1]


def text_of(model, size: int) -> list[int]:
    return np.random.default_rng(5).integers(0, model.vocabulary_size, size).tolist()


def in_pieces(model, size: int, total: int) -> np.ndarray:
    """Logits of `total` tokens after a context, `size` tokens a forward."""
    text = text_of(model, CONTEXT + total + size)
    rows = []
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, text[:CONTEXT], 1)])
        while sequence.length < CONTEXT + total:
            piece = text[sequence.length : sequence.length + size]
            run = Run(sequence, piece, len(piece), stepwise=True)
            rows.append(model.forward([run])[0].rows.copy())
    return np.concatenate(rows)[:total]


def test_forwards_of_every_size_up_to_the_measured_one_give_the_same_bits(measured):
    model, invariance = measured
    reference = in_pieces(model, 4, 64)
    for size in (size for size in SIZES if size <= invariance.tokens):
        assert np.array_equal(in_pieces(model, size, 64), reference), size


def bits_after(model, size: Callable[[], int], decoded: bool = False) -> bytes:
    """Logits of four tokens after a text that is read in pieces of `size`."""
    text = text_of(model, 400)
    with model.new_sequence() as sequence:
        while sequence.length < len(text):
            model.forward([Run(sequence, text[sequence.length :][: size()], 1, decoded)])
        run = Run(sequence, text[:4], 4, stepwise=True)
        return model.forward([run])[0].rows.tobytes()


def test_a_prompt_gets_the_same_bits_whatever_the_lengths_of_its_chunks(measured):
    model, invariance = measured
    assert invariance.chunks
    expected, rng = bits_after(model, lambda: PREFILL_CHUNK), np.random.default_rng(3)
    for longest in (PREFILL_CHUNK, 30, 8):
        assert bits_after(model, partial(rng.integers, 2, longest + 1)) == expected


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


def test_what_was_decoded_leaves_the_bits_of_a_prompt_where_that_is_measured(measured):
    model, invariance = measured
    assert invariance.decoded or not model.kernels, "the kernels compute every row alike"
    if invariance.decoded:
        decoded = bits_after(model, partial(np.random.default_rng(4).integers, 1, 17), True)
        assert decoded == bits_after(model, lambda: PREFILL_CHUNK)


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
    assert sizes == [shared, "0"]


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


def test_the_preparation_measures_costs_and_remembers_them(tiny_llama_pair, tmp_path, monkeypatch):
    monkeypatch.setattr(cost_measurement, "_timed", undisturbed)
    monkeypatch.setattr(CostModel, "record", lambda *_: None)  # a faster forward disproves costs
    engine, remembered = prepared(tiny_llama_pair, tmp_path, 1 << 40, background=False)
    exact, draft = remembered[0].targets["exact"], remembered[0].draft
    assert exact.measured and {1, 16} < exact.costs.keys() and exact.attention >= 0
    assert draft.costs[1] > 0
    engine.close()


def test_the_first_answer_has_the_draft_head(tiny_llama_pair, tmp_path):
    """It was compiled some seconds after the load, and the answers before had no drafts."""
    files = PairFiles(tiny_llama_pair.target, head=write_head(tmp_path / "head"))
    memory = {"context_limit": 1024, "available_bytes": lambda: 1 << 40}
    with closing(Engine(files, background=False, **memory)) as engine:
        assert engine.draft and not engine.target("exact").prepared.is_set()


def test_a_measurement_that_failed_is_repeated(tiny_llama_pair, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "REMEASURE_SECONDS", 0.01)
    monkeypatch.setattr(cost_measurement, "_timed", undisturbed)
    monkeypatch.setattr(CostModel, "record", lambda *_: None)  # a faster forward disproves costs
    measure, failures = cost_measurement.learn_costs, [CacheFull("full"), ModelError("failed")]

    def failing(*models, **options):
        if failures:
            raise failures.pop()
        return measure(*models, **options)

    monkeypatch.setattr(cost_measurement, "learn_costs", failing)
    engine, remembered = prepared(tiny_llama_pair, tmp_path, 1 << 40)
    until(lambda: remembered and remembered[-1].targets["exact"].costs)
    engine.close()


def test_the_context_is_limited_to_the_free_memory_which_is_said(tiny_llama_pair, caplog):
    memory = {"context_limit": 131_072, "available_bytes": lambda: 20_000_000}
    with closing(Engine(PairFiles(tiny_llama_pair.target), background=False, **memory)) as engine:
        model = engine.target("exact").model
        assert 2048 < engine.context_limit < 131_072
        assert model.pool.limit * model.block_bytes < 10_000_000
        assert f"limited to {engine.context_limit:,} tokens" in caplog.text
        assert len(caplog.records) == 1


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


def test_a_busy_start_is_used_not_kept_and_measured_again(tiny_llama_pair, tmp_path, monkeypatch):
    """The seconds of a step that was preempted once were kept for ever, and the head not asked."""
    monkeypatch.setattr(engines, "REMEASURE_SECONDS", 0.01)
    monkeypatch.setattr(CostModel, "record", lambda *_: None)  # a faster forward disproves costs
    busy = [True]
    monkeypatch.setattr(cost_measurement, "_timed", lambda *_: (busy[0], 0.06 if busy[0] else 0.01))
    engine, remembered = prepared(tiny_llama_pair, tmp_path, 1 << 40)
    first = remembered[-1]
    assert not first.targets["exact"].costs and not first.draft.costs
    assert engine.draft_step == 0.06, "for the moment it is used"
    busy[0] = False
    until(lambda: remembered[-1].draft.costs)
    assert remembered[-1].targets["exact"].measured
    assert remembered[-1].draft.costs[1] == engine.draft_step == 0.01
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
def test_a_forward_counts_if_its_threads_ran(monkeypatch, seconds, used, preempted, disturbed):
    ends = {"perf_counter": seconds, "process_time": used, "_preempted": preempted}
    for name, end in ends.items():
        monkeypatch.setattr(cost_measurement, name, iter([0, end]).__next__)
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


def test_a_check_goes_on_from_what_an_earlier_start_found_or_begins_anew(tiny_llama_pair):
    model = PagedModel(tiny_llama_pair.target, CLOSE)
    first, *_, last = measure_invariance(model)
    assert list(measure_invariance(model, first))[-1] == last
    model.min_tokens = 2
    assert list(measure_invariance(model))[-1] == last, "a new check pads nothing"
    assert model.min_tokens == last.min_tokens


@pytest.mark.parametrize(
    ("invariance", "tokens", "text"),
    [
        (Invariance(64, 0.0, 2, True), 1, "on 2 threads forwards of 1 to 64 tokens"),
        (Invariance(64, 0.0, 1, True), 1, "on 1 thread forwards"),
        (Invariance(64, 5e-4, 2), 2, "requests do not share forwards"),
        (Invariance(64, 0.5, 8), 2, "one token, which differs by up to 0.5, is padded to two"),
        (Invariance(0, 0.5, 8), 1, "depend on how many tokens run together"),
    ],
)
def test_an_invariance_decides_padding_and_its_text(invariance, tokens, text):
    assert invariance.min_tokens == tokens
    assert text in str(invariance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "settings"),
    [
        ("AVX2", "floats or kernels"),
        ("AVX2_VNNI", "floats or kernels"),
        ("AVX512_CORE_VNNI", "dynamic or cache"),
    ],
)
def test_what_is_measured_holds_with_the_instructions_of_other_processors(isa, settings):
    """oneDNN reads the variable when it is loaded, so in a process of its own, which uses every
    core. The plugin does not read it, and asks for dynamic quantization that oneDNN then has
    not."""
    options = ("-q", "-p", "no:cacheprovider", "-k", f"bits and ({settings})")
    variables = {"ONEDNN_MAX_CPU_ISA": isa, "PYTEST_XDIST_WORKER": "", "PYTEST_ADDOPTS": ""}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # their imports take a second
    done = python("-m", "pytest", __file__, *options, **variables)
    assert done.returncode == 0, done.stdout[-3000:]


# What the engine's own kernels compute: right, and with the same bits for any number of
# rows.

ROWS = (1, 2, 3, 4, 5, 8, 9, 40)
KEPT: list[ov.Tensor] = []  # a graph does not keep the memory of its constants


@pytest.fixture(scope="module")
def codes():
    """The code for every instruction set, and where the compiler is installed that of plain C."""
    pytest.importorskip("llvmlite")
    from specdemo.engine.backends.kernel_code import Kernels, object_file

    texts = {vnni: kernels.text_path(vnni).read_text() for vnni in ("", *kernels.VNNI)}
    made = [
        text if vnni in ("", kernels.vnni()) else emulated(text) for vnni, text in texts.items()
    ]
    if importlib.util.find_spec("ziglang"):
        made.append(llvm_text("", "-mno-avx2"))
    codes = [Kernels(object_file(text)) for text in made]
    yield codes
    for code in codes:  # their threads would take the processor from other tests
        code.close()


def emulated(text: str) -> str:
    """LLVM text with a function of plain vectors in place of the instruction of VNNI."""
    text = re.sub(r"\+avx512\w+|\+avxvnni", "+avx2", text)
    text = re.sub(r"^declare .*vpdpbusd.*", "", text, flags=re.MULTILINE)
    name = re.search(r"llvm\.x86\.avx512\.vpdpbusd\.\d+", text)[0]
    width = int(name.split(".")[-1]) // 32
    sums, fours, products = f"<{width} x i32>", f"<{4 * width} x i8>", f"<{4 * width} x i32>"
    lines = [
        f"define internal {sums} @fours({sums} %sum0, {fours} %weights, {fours} %x) #0 {{",
        f"%wide_weights = zext {fours} %weights to {products}",
        f"%wide_x = sext {fours} %x to {products}",
        f"%products = mul {products} %wide_weights, %wide_x",
    ]
    for part in range(4):
        places = ", ".join(f"i32 {place}" for place in range(part, 4 * width, 4))
        both = f"{products} %products, {products} poison"
        lines += [
            f"%part{part} = shufflevector {both}, {sums} <{places}>",
            f"%sum{part + 1} = add {sums} %sum{part}, %part{part}",
        ]
    return "\n".join([text.replace(name, "fours"), *lines, f"ret {sums} %sum4", "}"])


def test_the_committed_text_is_that_of_the_kernels():
    pytest.importorskip("ziglang")
    for vnni in ("", *kernels.VNNI):
        assert llvm_text(vnni) == kernels.text_path(vnni).read_text(), (
            "python -m tools.compile_kernels"
        )


def test_the_kernels_and_python_have_the_same_numbers_and_operations():
    text = SOURCE.read_text()
    [names] = re.findall(r"enum operation {(.*?),\s*}", text, re.DOTALL)
    operations = [name.upper() for name in forward_steps.OPERATIONS]
    assert [name.strip().replace("_", "") for name in names.split(",")] == operations
    numbers = dict(re.findall(r"\b([A-Z_]+) = (\d+),", text))
    expected = tiles.TILE, tiles.LANES, attention.BLOCK_TOKENS, tiles.LINE_BYTES // 8
    assert (
        tuple(int(numbers[name]) for name in ("TILE", "LANES", "BLOCK_TOKENS", "LINE_WORDS"))
        == expected
    )


@pytest.fixture
def code():
    pytest.importorskip("llvmlite")
    return kernels.compiled()


def matrix_of(rng, kind: str, outputs: int, columns: int, groups: int = 1):
    """Compressed weights as a node, with all values of the `kind` among them, and as float64
    [outputs, columns]."""
    low, high = {"i4": (-8, 8), "u4": (0, 16), "i8": (-128, 128), "u8": (0, 256)}[kind]
    stored = rng.integers(low, high, (outputs, groups, columns // groups))
    stored[0], stored[1] = low, high - 1
    scales = (rng.random((outputs, groups, 1)) + 0.1).astype(np.float16)
    zeros = rng.integers(0, high, scales.shape).astype(np.uint8) if kind[0] == "u" else None
    if kind == "u4" and groups > 1:  # as GGUF files have them
        zeros = (zeros - 0.3).astype(np.float16)
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(list(stored.shape)))
    raw = stored.astype(np.uint8).reshape(-1)
    graph.raw_bytes(tensor)[:] = (raw[::2] & 15 | raw[1::2] << 4) if "4" in kind else raw
    KEPT.append(tensor)
    values = (stored - (0 if zeros is None else zeros.astype(np.float64))) * scales.astype(
        np.float64
    )
    return compressed(tensor, scales, zeros), values.reshape(outputs, columns)


def in_kernels(results, inputs) -> Callable[..., list[np.ndarray]]:
    """A function that kernels compute, [tokens, width] for each of `results`."""
    named = {str(index): node for index, node in enumerate(inputs)}
    for name, node in named.items():
        node.output(0).get_tensor().set_names({name})
    first, *others = map(ops.result, results)
    model = ov.Model([first], inputs, "function")
    graph.add_log_sums(model)
    model.add_results(others)
    computed = forward.KernelForward(model, CORE, dict(CLOSE.properties))

    def compute(*given: np.ndarray) -> list[np.ndarray]:
        made, _, *rest = computed.run(dict(zip(named, given, strict=True)))
        return [values.copy() for values in (made, *rest)]

    return compute


def refused(results, inputs) -> None:
    with pytest.raises(ModelError, match="compute only parts"):
        in_kernels(results, inputs)


def rounded(x: np.ndarray, group: int) -> np.ndarray:
    """Activations as the kernels round them, float64."""
    apart = x.reshape(len(x), -1, group)
    top = np.abs(apart).max(2, keepdims=True)
    factor = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
    return (np.rint(apart * factor) * (top.astype(np.float64) / 127)).reshape(x.shape)


@pytest.mark.parametrize(
    ("kind", "outputs", "columns", "groups"),
    [
        ("i4", 32, 256, 2),
        ("i4", 16, 8960, 70),
        ("u4", 48, 96, 3),
        ("i8", 64, 576, 1),
        ("u8", 32, 256, 4),
        ("u4", 40, 128, 1),  # the last two tiles share outputs
        ("i8", 23, 64, 1),
    ],
)
def test_products_are_those_of_numpy_whatever_the_rows_threads_and_instructions(
    codes, monkeypatch, kind, outputs, columns, groups
):
    rng = np.random.default_rng(columns)
    matrix, values = matrix_of(rng, kind, outputs, columns, groups)
    other, other_values = matrix_of(rng, "i8", 16, columns)
    x = ops.parameter([-1, 1, columns], ov.Type.f32)
    products = [ops.matmul(x, weights, False, True) for weights in (matrix, other, matrix)]
    compute = in_kernels(products, [x])
    given = rng.standard_normal((max(ROWS), 1, columns), np.float32)
    given[2] = 0
    group = next(size for size in (128, 64, 32) if columns // groups % size == 0)
    exact = rounded(given[:, 0], group) @ values.T
    wide = next(size for size in (128, 64, 32) if columns % size == 0)
    other_exact = rounded(given[:, 0], wide) @ other_values.T
    first = None
    for code, threads in product(codes, (1, 2, 8)):
        code.start(threads)
        monkeypatch.setattr(forward, "compiled", lambda code=code: code)
        for rows in ROWS:
            made, beside, again = compute(given[:rows])
            first = made[0] if first is None else first
            assert np.array_equal(made, again)
            assert np.array_equal(made[0], first)
            assert np.abs(made - exact[:rows]).max() < 1e-5 * np.abs(exact).max()
            assert np.abs(beside - other_exact[:rows]).max() < 1e-5 * np.abs(other_exact).max()


def test_packed_weights_follow_each_other_in_whole_lines():
    """So that NumPy asks for large pages, whatever the sizes of single matrices."""
    scales, zeros = np.ones((2, 40, 3), np.float16)
    weights = [tiles.Weights(np.ones((40, 96), np.uint8), 8, scales, zeros)] * 3
    rooms = tiles.room_for(weights)
    for room, following in pairwise(rooms):
        assert room.ctypes.data % tiles.LINE_BYTES == 0
        assert following.ctypes.data == room.ctypes.data + room.size
    made = [tiles.pack(*pair).content[0] for pair in zip(weights, rooms, strict=True)]
    assert all(np.shares_memory(memory, rooms[0].base) for memory in made)


def root_mean_square(x: ov.Node, power: bool) -> ov.Node:
    """The factor of an RMSNorm, in either of the forms that exporters write."""
    mean = ops.add(ops.reduce_mean(ops.power(x, np.float32(2)), [-1], True), np.float32(0.01))
    if power:
        return ops.power(mean, np.float32(-0.5))
    return ops.divide(np.float32(1), ops.sqrt(mean))


GATES = {
    "swish": (ops.swish, lambda x: x * (1 + np.tanh(x / 2)) / 2),
    "tanh": (
        lambda x: ops.gelu(x, "tanh"),
        lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    ),
    "erf": (
        lambda x: ops.gelu(x, "erf"),
        lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    ),
    "square": (lambda x: ops.power(ops.relu(x), np.float32(2)), lambda x: np.maximum(x, 0) ** 2),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("kind", ["root", "power", "variance"])
def test_a_layer_is_computed_with_its_norm_gate_bias_and_sums(code, gate, kind):
    """Two residual streams that go on, one of them a result too."""
    rng = np.random.default_rng(3)
    widths = {"gate": (128, 64), "up": (128, 64), "down": (64, 128), "next": (32, 64)}
    nodes, values = {}, {}
    for name, shape in widths.items():
        nodes[name], values[name] = matrix_of(rng, "i8", *shape)
    bias, norm = rng.standard_normal((2, 64), np.float32)
    x, attended = (ops.parameter([-1, 1, 64], ov.Type.f32) for _ in range(2))
    stream = ops.add(x, ops.multiply(attended, np.float32(0.5)))
    if kind == "variance":
        normal = ops.mvn(stream, ops.constant([-1]), True, 0.01, "inside_sqrt")
    else:
        normal = ops.multiply(root_mean_square(stream, kind == "power"), stream)
    state = ops.multiply(normal, norm)
    active = GATES[gate][0](ops.matmul(state, nodes["gate"], False, True))
    inner = ops.multiply(active, ops.matmul(state, nodes["up"], False, True))
    out = ops.add(ops.add(ops.matmul(inner, nodes["down"], False, True), bias), stream)
    compute = in_kernels((ops.matmul(out, nodes["next"], False, True), stream), [x, attended])
    given = rng.standard_normal((2, max(ROWS), 1, 64), np.float32) * [[[[30]]], [[[1]]]]
    given = given.astype(np.float32)
    first = None
    for rows in ROWS:
        results = compute(*given[:, :rows])
        first = first or [result[0] for result in results]
        pairs = zip(results, first, strict=True)
        assert all(np.array_equal(result[0], one) for result, one in pairs)
    stream = given[0, :, 0] + given[1, :, 0] / 2
    assert np.array_equal(results[1], stream)
    middle = stream.mean(1, keepdims=True, dtype=float) if kind == "variance" else 0.0
    state = (stream - middle) / np.sqrt(((stream - middle) ** 2).mean(1, keepdims=True) + 0.01)
    state *= norm
    sums = {name: rounded(state, 64) @ values[name].T for name in ("gate", "up")}
    inner = GATES[gate][1](sums["gate"]) * sums["up"]
    out = rounded(inner, 128) @ values["down"].T + bias + stream
    exact = rounded(out, 64) @ values["next"].T
    # A value that lies between two roundings can take the other one.
    assert np.abs(results[0] - exact).max() < 0.01 * np.abs(exact).max()


@pytest.mark.parametrize(
    "factor",
    [
        lambda x: ops.divide(
            np.float32(1), ops.sqrt(ops.add(mean_of(x, 2, axis=1), np.float32(1)))
        ),
        lambda x: ops.divide(ops.sqrt(ops.add(mean_of(x, 2), np.float32(1))), np.float32(1)),
        lambda x: ops.power(ops.add(mean_of(x, 2, base=True), np.float32(1)), np.float32(-0.5)),
    ],
)
def test_what_only_looks_like_a_norm_is_none(code, factor):
    """A mean of another axis; a root in place of its inverse; 2 to the power of x."""
    rng = np.random.default_rng(6)
    x = ops.parameter([-1, 2, 64], ov.Type.f32)
    matrix, values = matrix_of(rng, "i8", 16, 128)
    scaled = ops.reshape(ops.multiply(x, factor(x)), [-1, 128], False)
    given = rng.standard_normal((3, 2, 64), np.float32)
    plain = ov.Model([ops.result(scaled)], [x], "plain")
    exact = CORE.compile_model(plain, "CPU", dict(CLOSE.properties))([given])[0] @ values.T
    compute = in_kernels([ops.matmul(scaled, matrix, False, True)], [x])
    assert np.abs(compute(given)[0] - exact).max() < 0.01 * np.abs(exact).max()


def mean_of(x: ov.Node, number: float, axis: int = -1, base: bool = False) -> ov.Node:
    factors = (np.float32(number), x) if base else (x, np.float32(number))
    return ops.reduce_mean(ops.power(*factors), [axis], True)


@pytest.mark.parametrize(
    "between",
    [ops.abs, lambda x: ops.power(x, np.float32(3)), lambda x: ops.swish(x, np.float32(2))],
    ids=["abs", "cube", "swish"],
)
def test_what_the_plugin_would_compute_between_two_products_is_refused(between):
    """A chain that leaves the kernels and comes back, beside one that does not."""
    rng = np.random.default_rng(4)
    matrices = [matrix_of(rng, "u4", 64, 64)[0] for _ in range(3)]
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    near = ops.matmul(x, matrices[0], False, True)
    far = ops.matmul(between(near), matrices[1], False, True)
    refused([ops.matmul(ops.add(far, ops.multiply(near, near)), matrices[2], False, True)], [x])


def test_a_part_that_is_all_of_a_head_is_turned(code):
    """As optimum-intel's Phi-3 cuts heads of which no rest stays."""
    rng = np.random.default_rng(7)
    (first, before), (last, after) = (matrix_of(rng, "i8", 64, 64) for _ in range(2))
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    angles = [ops.parameter([-1, 1, 1, 32], ov.Type.f32) for _ in range(2)]
    heads = ops.reshape(ops.matmul(x, first, False, True), [0, 1, 2, 32], True)
    low, middle, high = (ops.constant([index]) for index in (0, 16, np.iinfo(np.int64).max))
    step, axis = ops.constant([1]), ops.constant([3])
    turned = ops.slice(heads, low, ops.constant([32]), step, axis)
    halves = [ops.slice(turned, *ends, step, axis) for ends in ((low, middle), (middle, high))]
    swapped = ops.concat([ops.multiply(halves[1], np.float32(-1)), halves[0]], 3)
    turned = ops.add(ops.multiply(turned, angles[0]), ops.multiply(swapped, angles[1]))
    out = ops.matmul(ops.reshape(turned, [0, 1, 64], True), last, False, True)
    compute = in_kernels([out], [x, *angles])
    shapes = (5, 1, 64), (5, 1, 1, 32), (5, 1, 1, 32)
    given, cosines, sines = (rng.standard_normal(shape, np.float32) for shape in shapes)
    heads = (given[:, 0] @ before.T).reshape(5, 2, 32)
    swapped = np.concatenate([-heads[:, :, 16:], heads[:, :, :16]], 2)
    exact = (heads * cosines[:, 0] + swapped * sines[:, 0]).reshape(5, 64) @ after.T
    [found] = compute(given, cosines, sines)
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("outputs", [24, 5000, 27])
def test_the_mass_of_logits_comes_with_them(code, outputs):
    """Among logits far below the largest, which must neither vanish nor overflow; 27 do not fill
    registers."""
    rng = np.random.default_rng(6)
    x = graph.named_input("x", [-1, 1, 64], ov.Type.f32)
    logits = ops.matmul(x, matrix_of(rng, "i8", outputs, 64)[0], False, True)
    model = ov.Model([ops.result(logits)], [x], "logits")
    graph.add_log_sums(model)
    computed = forward.KernelForward(model, CORE, dict(CLOSE.properties))
    given = 10.0 ** rng.integers(-3, 2, (9, 1, 1)) * rng.standard_normal((9, 1, 64))
    given = given.astype(np.float32)
    rows, log_sums = computed.run({"x": given})
    assert np.allclose(log_sums, np.logaddexp.reduce(rows, -1, keepdims=True, dtype=float), 2e-6)


def test_inputs_with_other_rows_are_refused_and_nothing_is_read_beyond_them(code):
    rng = np.random.default_rng(5)
    x, z = (ops.parameter([-1, 1, 64], ov.Type.f32) for _ in range(2))
    products = [ops.matmul(y, matrix_of(rng, "i8", 16, 64)[0], False, True) for y in (x, z)]
    compute = in_kernels(products, [x, z])
    given = np.ones((3, 1, 64), np.float32)
    assert compute(given, given)[0].shape == (3, 16)
    with pytest.raises(ModelError, match="different numbers of tokens"):
        compute(given, given[:1])


@pytest.mark.parametrize("heads", [1, 2])
def test_a_product_read_in_parts_becomes_one_for_each_with_the_same_results(heads):
    """Of every head, or of all; with a bias of 16 bits, as exports have them."""
    rng = np.random.default_rng(8)
    matrix, _ = matrix_of(rng, "u8", 96, 64)
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    bias = ops.convert(ops.constant(rng.standard_normal(96).astype(np.float16)), "f32")
    whole = ops.add(ops.matmul(x, matrix, False, True), bias)
    if heads > 1:
        whole = ops.transpose(ops.reshape(whole, [0, 0, heads, 48], True), [0, 2, 1, 3])
    length = 96 // heads // 3
    parts = ops.variadic_split(whole, -1, [length] * 3).outputs()
    model = ov.Model([ops.result(part) for part in parts], [x], "parts")
    given = rng.standard_normal((5, 1, 64), np.float32)
    before = [*CORE.compile_model(model, "CPU", dict(CLOSE.properties))([given]).values()]
    graph.split_products(model)
    kinds = [node.get_type_name() for node in model.get_ops()]
    assert kinds.count("MatMul") == 3 and "VariadicSplit" not in kinds
    after = CORE.compile_model(model, "CPU", dict(CLOSE.properties))([given]).values()
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(old, new, atol=1e-4)


@pytest.mark.parametrize(("outputs", "columns", "groups"), [(8, 64, 1), (16, 48, 1), (16, 64, 4)])
def test_shapes_that_fill_no_tile_or_group_are_refused(outputs, columns, groups):
    matrix, _ = matrix_of(np.random.default_rng(0), "i8", outputs, columns, groups)
    x = ops.parameter([-1, 1, columns], ov.Type.f32)
    refused([ops.matmul(x, matrix, False, True)], [x])


@pytest.mark.parametrize(
    ("kind", "scales", "zeros"),
    [
        ("i8", (1, 64), None),
        ("i8", (64,), None),
        ("i8", (64, 1), np.full((1, 64), 9, np.uint8)),
        ("u8", (64, 1), np.full((64, 1), np.nan, np.float16)),
        ("f16", (), None),
    ],
)
def test_weights_with_other_scales_or_zeros_are_refused(kind, scales, zeros):
    """Those of each column; zeros that are no numbers; a number times a matrix: no scales."""
    stored = np.arange(64 * 64).reshape(64, 64) % 100
    types = {"i8": np.int8, "u8": np.uint8, "f16": np.float16}
    parts = [stored.astype(types[kind]), np.full(scales, 0.5, np.float16), zeros]
    KEPT.extend(parts)
    matrix, scale = (ops.convert(ops.constant(part), "f16") for part in parts[:2])
    if zeros is not None:
        matrix = ops.subtract(matrix, ops.convert(ops.constant(zeros), "f16"))
    weights = ops.multiply(*((matrix, scale) if scales else (scale, matrix)))
    x = ops.parameter([-1, 64], ov.Type.f32)
    refused([ops.matmul(x, ops.convert(weights, "f32"), False, True)], [x])


def test_only_a_short_expression_of_single_numbers_is_computed_as_one():
    """Not what would fill the memory, or take 2 ** 60 steps."""
    window = ops.multiply(ops.constant(np.int32(19)), ops.constant(np.int32(-1)))
    assert graph.number(window.output(0)) == -19
    filled = ops.broadcast(np.float32(1), np.array([1 << 40], np.int64))
    assert graph.number(ops.reduce_sum(filled, [0]).output(0)) is None
    for _ in range(60):
        window = ops.add(window, window)
    assert graph.number(window.output(0)) is None


VIEWS = {
    "joined tokens": lambda x: ops.reshape(x, [-1, 128], False),
    "a number of tokens": lambda x: ops.reshape(x, [4, 64], False),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_with_other_tokens_is_refused(code, view):
    x = ops.parameter([-1, 64], ov.Type.f32)
    seen = VIEWS[view](x)
    width = seen.get_output_partial_shape(0)[-1].get_length()
    matrix, _ = matrix_of(np.random.default_rng(9), "i8", 16, width)
    with pytest.raises(RuntimeError, match="reshape"):
        in_kernels([ops.matmul(seen, matrix, False, True)], [x])


def test_early_exports_cut_the_last_axis_of_heads():
    """As optimum-intel 1.18 writes Dolly: ends depend on shapes."""
    x = ops.parameter([-1, 4, 32], ov.Type.f32)
    most, unknown = 2**63 - 1, ops.parameter([3], ov.Type.i64)
    for begin, end, masks, expected in (
        ([0, 0, 0], [0, 0, 8], [1, 1, 0], (0, 8)),
        ([0, 0, 8], [0, 0, most], [1, 1, 0], (8, 32)),
        (unknown, [0, 0, most], [1, 1, 0], None),
        ([0, 1, 0], [0, 4, 32], [1, 0, 0], None),
    ):
        cut = ops.strided_slice(x, begin, end, [1, 1, 1], masks, masks)
        found = graph.part_of(cut.output(0))
        assert (found and found[1:]) == expected


def test_angles_are_read_from_a_whole_table_where_its_cut_depends_on_products(code):
    """As optimum-intel 1.18 writes Dolly."""
    rng = np.random.default_rng(8)
    (first, before), (last, after) = (matrix_of(rng, "i8", 64, 64) for _ in range(2))
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    places = ops.parameter([-1], ov.Type.i64)
    made = ops.matmul(x, first, False, True)
    table = rng.standard_normal((8, 64), np.float32)
    cut = ops.strided_slice(table, [0], ops.gather(ops.shape_of(made), [0], 0), [1], [0], [0])
    added = ops.unsqueeze(ops.gather(cut, places, 0), 1)
    compute = in_kernels([ops.matmul(ops.add(made, added), last, False, True)], [x, places])
    given, order = rng.standard_normal((5, 1, 64), np.float32), np.array([3, 0, 4, 1, 2])
    exact = (given[:, 0] @ before.T + table[order]) @ after.T
    assert np.abs(compute(given, order)[0] - exact).max() < 0.02 * np.abs(exact).max()


def test_a_row_of_a_table_is_no_cut_of_it():
    table, places = ops.constant(np.ones((8, 4), np.float32)), ops.parameter([-1], ov.Type.i64)
    row = ops.strided_slice(table, [0], [1], [1], [0], [0], [], [1])
    model = ov.Model([ops.result(ops.gather(row, places, 0))], [places], "row")
    graph.uncut_tables(model)
    assert row.output(0).get_target_inputs()


def test_a_gate_whose_exponent_has_more_axes_stays_with_the_plugin(code):
    x = ops.parameter([4, 64], ov.Type.f32)
    matrix, _ = matrix_of(np.random.default_rng(9), "i8", 64, 64)
    squared = ops.power(ops.matmul(x, matrix, False, True), np.full((1, 1, 1), 2, np.float32))
    assert forward_steps._gate(squared) == ""


def test_what_a_norm_computes_can_be_read_beside_it(code):
    rng = np.random.default_rng(9)
    x = ops.parameter([-1, 64], ov.Type.f32)
    matrix, values = matrix_of(rng, "i8", 16, 64)
    squares = ops.power(x, np.float32(2))
    root = ops.sqrt(ops.add(ops.reduce_mean(squares, [-1], True), np.float32(1)))
    states = ops.multiply(x, ops.divide(np.float32(1), root)), ops.add(squares, x)
    compute = in_kernels([ops.matmul(state, matrix, False, True) for state in states], [x])
    given = rng.standard_normal((3, 64), np.float32)
    exact = (given**2 + given) @ values.T
    assert np.abs(compute(given)[1] - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("shape", [(-1, 32, 1), (1, 1, 32), (-1, 32)])
def test_angles_that_are_not_of_tokens_stay_with_the_plugin(shape):
    heads = ops.parameter([-1, 32, 32], ov.Type.f32)
    cosines, sines = (ops.parameter([*shape], ov.Type.f32) for _ in range(2))
    low, high = ops.variadic_split(heads, -1, [16, 16]).outputs()
    swapped = ops.concat([ops.multiply(high, np.float32(-1)), low], -1)
    turned = ops.add(ops.multiply(heads, cosines), ops.multiply(swapped, sines))
    assert forward_steps.rotation(turned) is None


def test_constants_of_types_that_numpy_lacks_are_not_read_as_others():
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape([64]))
    graph.raw_bytes(tensor).view(np.uint16)[:] = 0xC020
    KEPT.append(tensor)
    converted = ops.convert(ops.constant(tensor), "f32").output(0)
    assert (forward_steps._floats(converted) == np.full(64, -2.5)).all()


@pytest.mark.parametrize("sizes", [[0, 0, 2, 2, 24], [1, -1, 2, 48]])
def test_parts_of_a_view_with_other_axes_stay_parts(sizes):
    x = ops.parameter([-1, 1, 64], ov.Type.f32)
    matrix, _ = matrix_of(np.random.default_rng(8), "u8", 96, 64)
    whole = ops.reshape(ops.matmul(x, matrix, False, True), sizes, True)
    parts = ops.variadic_split(whole, -1, [sizes[-1] // 3] * 3).outputs()
    model = ov.Model([ops.result(part) for part in parts], [x], "parts")
    graph.split_products(model)
    assert "VariadicSplit" in [node.get_type_name() for node in model.get_ops()]


def test_attention_and_rotation_are_those_of_numpy(code, tiny_llama_pair, monkeypatch):
    """Of a layer with products by the plugin, at the ends of blocks, for a prompt and single
    tokens."""
    for module in (forward_steps, forward):
        monkeypatch.setattr(module, "is_product", lambda node: False)
    model = graph.read_ir(CORE, tiny_llama_pair.target)
    graph.page_attention(model)
    first = next(node for node in model.get_ordered_ops() if "PagedAttention" in str(node))
    turns, inputs = forward_steps.find_steps(model, [first.output(0)])
    assert [step.operation for step in turns] == ["Rotate", "Rotate", "Attend"]
    layer = turns[2].attention
    blocks = np.random.default_rng(0).permutation(20)[:19].astype(np.int32)
    cache = np.zeros((2, 20, *layer.cache_shape), np.float16)
    layer.description[-2:] = [part.ctypes.data for part in cache]
    program = forward.Program(turns, inputs, [turns[2].key])
    core = Mock(wraps=CORE)
    front = RowInstances(forward._front(inputs), core, {**dict(CLOSE.properties), THREADS: "2"})
    asked = [call.args[2][THREADS] for call in core.compile_model.call_args_list]
    assert asked == ["2", "1", "1"]  # what the plugin would use, and what it uses here
    text = np.random.default_rng(5).integers(0, 256, 600)
    found = []
    for begin, end in pairwise((0, 62, 63, 64, 65, 95, 100, 300, 599, 600)):
        positions = np.arange(begin, end, dtype=np.int32)
        given = front.run({"input_ids": text[begin:end], "position_ids": [*positions]})
        layout = [positions, np.zeros_like(positions), blocks, positions - begin]
        found.append(program.run(given, layout)[0].copy())
    read = front.run({"input_ids": text, "position_ids": range(600)})
    values = {
        attention.key_of(output): array.reshape(600, -1, layer.size).astype(np.float64)
        for output, array in zip(inputs, read, strict=True)
    }
    for step in turns[:2]:
        x, cosines, sines = (values[attention.key_of(source)] for source in step.sources)
        low, high = np.split(x, 2, axis=-1)
        values[step.key] = x * cosines + np.concatenate([-high, low], -1) * sines
    q, k, v = (values[attention.key_of(source)] for source in turns[2].sources)
    shared = q.shape[1] // k.shape[1]
    k, v = (np.repeat(part.astype(np.float16).astype(float), shared, 1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(layer.size)
    weights = np.exp(scores) * np.tril(np.ones((600, 600)))
    expected = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    difference = np.concatenate(found) - expected.reshape(600, -1)
    assert np.abs(difference).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("window", [attention.ALL_TOKENS, 40])
def test_attention_has_the_same_bits_whatever_the_rows_threads_requests_and_instructions(
    codes, monkeypatch, tiny_llama_pair, window
):
    """Over parts of the context that threads share; rows begin to read in different ones."""
    model = PagedModel(tiny_llama_pair.target, OWN)
    for layer in model._instance.attentions:
        layer.description[4] = window
    text, found = text_of(model, 310), set()
    with model.new_sequence() as other:
        model.forward([Run(other, text[:300], 0)])
        ways = [(1, 2, 0), (8, 2, 0), (7, 2, 3), (64, 4, 2)]
        usual = codes[("", *kernels.VNNI).index(kernels.vnni())]
        for code, (size, threads, beside) in [*product([usual], ways), *product(codes, ways[-1:])]:
            code.start(threads)
            monkeypatch.setattr(forward, "compiled", lambda code=code: code)
            rows = []
            with model.new_sequence() as sequence:
                model.forward([Run(sequence, text[:240], 0)])
                while sequence.length < 304:
                    piece = text[sequence.length : sequence.length + size]
                    batch = [Run(other, text[:beside], 1)] if beside else []
                    batch.append(Run(sequence, piece, len(piece), stepwise=True))
                    rows.append(model.forward(batch)[-1].rows.copy())
                    other.truncate(300)
            found.add(np.concatenate(rows)[:64].tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("instructions", ["VNNI", "AVX2"])
def test_all_but_tiny_models_use_kernels_with_the_instructions_of_the_processor(
    tiny_llama_pair, monkeypatch, instructions
):
    xml = tiny_llama_pair.target
    monkeypatch.setattr(kernels, "available", lambda: True)
    monkeypatch.setattr(kernels, "vnni", lambda: "avxvnni" if instructions == "VNNI" else "")
    for least, used in ((numerics.KERNEL_WEIGHTS, False), (1, True)):
        monkeypatch.setattr(numerics, "KERNEL_WEIGHTS", least)
        first, *others = numerics.candidates(xml, "CPU", "auto", True, CORE)
        assert kernels.in_kernels(first) == used
        assert not any(map(kernels.in_kernels, others))
        assert (kernels.forward_by("kernels") in first) == used


def test_what_kernels_compute_only_in_parts_stays_with_the_plugin(code, tiny, monkeypatch):
    monkeypatch.setattr(numerics, "KERNEL_WEIGHTS", 1)
    monkeypatch.setattr(kernels, "available", lambda: True)
    for turned, computing in ((forward_steps.rotation, "kernels"), (lambda node: None, "plugin")):
        monkeypatch.setattr(forward_steps, "rotation", turned)
        xml = tiny.dolly / "openvino_model.xml"
        model, invariance = numerics.open_target(PairFiles(xml), CORE)
        assert kernels.forward_by(computing) in model.settings.properties
        assert model.kernels == (computing == "kernels")
        assert invariance.tokens >= numerics.USEFUL_TOKENS


def test_kernels_are_tried_with_their_own_precision_of_the_cache_only(tiny_llama_pair, monkeypatch):
    monkeypatch.setattr(numerics, "KERNEL_WEIGHTS", 1)
    monkeypatch.setattr(kernels, "available", lambda: True)
    for precision, used in (("f16", True), ("f32", False), ("u8", False)):
        tried = numerics.candidates(tiny_llama_pair.target, "CPU", precision, True, CORE)
        assert any(map(kernels.in_kernels, tried)) == used


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_a_limit_of_onednn_is_a_processor_without_vnni(code, isa):
    program = "from specdemo.engine.backends import kernels; print(kernels.available())"
    assert python("-c", program, ONEDNN_MAX_CPU_ISA=isa).stdout == "True\n"


def test_what_the_plugin_computes_runs_where_onednn_is_limited(tiny_llama_pair, tmp_path):
    program = f"""
import openvino
from pathlib import Path
from unittest.mock import Mock
from specdemo.engine.backends.draft_head import DraftHead
from specdemo.engine.backends.numerics import open_target
from specdemo.engine.pair_files import PairFiles
from specdemo.engine.forwards import Run
DraftHead(Path({str(write_head(tmp_path / "head"))!r}), openvino.Core())
target = PairFiles(Path({str(tiny_llama_pair.target)!r}))
model, _ = open_target(target, openvino.Core(), exact=False)
model.forward([Run(model.new_sequence(), [1, 2], 1)])
"""
    assert python("-c", program, ONEDNN_MAX_CPU_ISA="AVX2").returncode == 0


def test_without_llvmlite_the_plugin_computes_all(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not kernels.available.__wrapped__()


def test_a_dropped_model_frees_its_weights(tiny_llama_pair):
    pytest.importorskip("llvmlite")
    model = PagedModel(tiny_llama_pair.target, OWN)
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1, 2, 3], 1)])
    matrices = model._instance._program._matrices.values()
    kept = [weakref.ref(matrix.content[0]) for matrix in matrices]
    assert len(kept) == 15 and all(weights() is not None for weights in kept)
    del model, sequence, matrices
    gc.collect()
    assert not any(weights() is not None for weights in kept)
