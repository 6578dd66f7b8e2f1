"""Checkpoints and GGUF files become IR without torch: the logits of torch, the tokens of the
reference tokenizer, whole or not at all; one sentence for what cannot be converted."""

import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import tiny_gguf
import toy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, TokenType
from tiny_models import ir_folder
from tokenizers import Regex, pre_tokenizers

from specdemo import cli
from specdemo.convert import (
    checkpoints,
    configuration,
    exporting,
    gguf_decoder,
    gguf_file,
    gguf_tokenizer,
    model_files,
    weights,
)
from specdemo.convert.exporting import export
from specdemo.engine.backends import forward, kernels
from specdemo.engine.backends.paged import CACHE, PagedModel
from specdemo.engine.forwards import ModelSettings, Run
from specdemo.engine.rounds import Round
from specdemo.errors import BadInput, FetchError, MissingPackage
from specdemo.machine.terminal import silent
from specdemo.pairs import hub, sources
from specdemo.pairs.loading import read_text_files
from specdemo.text.templates import Chat, Message, chat_template
from specdemo.text.tokenizer import TextStream, Tokenizer
from tools import rounding

IDS = [5, 17, 400, 3, 3, 42, 11, 7, 260, 31, 8, 77]
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
OWN = ("INFERENCE_PRECISION_HINT", "f32"), CACHE, (kernels.FORWARD, kernels.KERNELS)
EXACT |= {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
CONFIG = Path("config.json")
TEXTS = (
    "def f(a, b):\n\treturn a+b  # x\r\n\r\n\n  indented   ",
    "camelCase HTTPServer Ünder //\n// path/to/",
    "It's 2026-11-23, 3.14159 and 1234567; WE'LL see... don't!",
    "naïve café — “quotes” ½ ٣٤ \u00a0 日本語のテキスト 한국어 русский",
    "👍🏽👩‍👩‍👧 e\u0301 <|im_end|> <think> <|im_start|>user\n",
    " ",
    "",
)


@pytest.fixture(autouse=True)
def no_torch(monkeypatch) -> None:
    """For `export`; these tests themselves use it."""
    monkeypatch.setattr(exporting, "_NEEDED", ("no_such_package",))


def paged_logits(paged: PagedModel, *chunks: list[int]) -> np.ndarray:
    with paged.new_sequence() as sequence:
        runs = (Run(sequence, chunk, len(chunk), stepwise=True) for chunk in chunks)
        return np.concatenate([paged.forward([run])[0].rows.copy() for run in runs])


def stateful_logits(compiled: ov.CompiledModel, *chunks: list[int]) -> np.ndarray:
    """As programs run it that know optimum-intel's exports."""
    request = compiled.create_infer_request()
    rows, length = [], 0
    for ids in chunks:
        positions = np.arange(length, length + len(ids))
        length += len(ids)
        inputs = {"input_ids": [ids], "position_ids": positions[None], "beam_idx": [0]}
        inputs |= {"attention_mask": np.ones((1, length), np.int64)}
        names = {name for port in request.model_inputs for name in port.names}
        result = request.infer({name: np.array(inputs[name]) for name in names & set(inputs)})
        rows.append(result["logits"][0].copy())
    return np.concatenate(rows)


def torch_logits(model) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def exported(source: Path, weight_format: str = "fp16") -> Path:
    out = source.with_name(f"{source.name}-{weight_format}")
    export(source, out, weight_format)
    return out / model_files.MODEL


def opened(xml: Path) -> PagedModel:
    return PagedModel(xml, ModelSettings("CPU", tuple(EXACT.items())))


def rounded(matrix: np.ndarray, four: bool) -> np.ndarray:
    """`matrix` with 16 levels for 128 weights, or 256 for a row, around 0; the lowest level is the
    weight of largest magnitude."""
    groups = matrix.reshape(len(matrix), -1, 128 if four else matrix.shape[1])
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    lowest = -8 if four else -128
    step = (np.where(-low >= high, low, high) / lowest).astype(np.float16).astype(np.float32)
    levels = np.clip(np.rint(groups / np.where(step == 0, 1, step)), lowest, -lowest - 1)
    return (levels * step).reshape(matrix.shape)


TIED = {"tie_word_embeddings": True}
MIXED = ["full_attention", *["sliding_attention"] * 4, "full_attention"]
LLAMA3 = {"rope_parameters": tiny_gguf.LLAMA3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "source", "weight_format", "own"),
    [
        ("gptneox", "float32", "fp16", {"rotary_pct": 0.2}),
        ("gptneox", "float16", "fp16", {"rotary_pct": 0.5, "use_parallel_residual": False}),
        ("gptneox", "float32", "fp16", {"rotary_emb_base": 500, "rotary_pct": 1.0, **TIED}),
        ("gptneox", "float32", "fp16", {"hidden_act": "gelu_fast", "attention_bias": False}),
        ("gptneox", "bfloat16", "fp16", {"layer_norm_eps": 0.1}),
        ("gptneox", "float32", "int8", {}),
        ("gpt2", "float32", "fp16", {}),
        ("llama", "float16", "fp16", LLAMA3 | {"attention_bias": True}),
        ("qwen2", "float32", "fp16", {"num_key_value_heads": 4}),
        ("qwen3", "bfloat16", "fp16", TIED | {"partial_rotary_factor": 0.5}),  # not read there
        ("gemma3", "float32", "fp16", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("gemma3", "bfloat16", "fp16", {"num_key_value_heads": 1, "layer_types": MIXED}),
        ("phi3", "float32", "fp16", tiny_gguf.LONG | TIED),
        ("phi3", "float16", "fp16", {"sliding_window": 4}),
        ("smollm3", "float32", "fp16", TIED | {"no_rope_layers": [0, 1, 1, 0]}),
        ("granite", "float32", "fp16", {"attention_bias": True, "mlp_bias": True}),
        ("olmo2", "float16", "fp16", {"attention_bias": True}),
        ("llama", Type.F16, "fp16", LLAMA3 | {"attention_bias": True}),
        ("llama", Type.F16, "int8", {}),
        ("llama", Type.F16, "int4", {}),
        ("llama", Type.Q4_1, "fp16", {}),
        ("qwen2", Type.Q8_0, "fp16", {}),
        ("qwen2", Type.Q5_0, "fp16", {"num_key_value_heads": 4}),
        ("qwen3", Type.BF16, "fp16", TIED),
        ("qwen3", Type.Q4_0, "fp16", {"head_dim": 64}),
        ("gemma3", Type.F16, "fp16", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("gemma3", Type.F16, "int8", {"num_key_value_heads": 1}),
        ("phi3", Type.F16, "fp16", tiny_gguf.LONG),
        ("phi3", Type.Q8_0, "fp16", TIED),
        ("smollm3", Type.F16, "fp16", {"attention_bias": True}),
        ("granite", Type.F16, "fp16", TIED),
        ("olmo2", Type.F16, "fp16", {"num_key_value_heads": 4}),
    ],
    ids=str,
)
def test_logits_are_those_of_torch_in_any_forward_and_answers_those_without_a_draft(
    tmp_path, family, source, weight_format, own
):
    """With its weights rounded as the format says. `source`: a type of GGUF files, or of the
    numbers in a checkpoint of several files."""
    model, path = tiny_gguf.torch_model(family, **own), tmp_path / "model"
    if isinstance(source, str):
        model = tiny_gguf.saved(path, model, source)
    else:
        tiny_gguf.write(path, model, family, source)
    exact = torch_logits(model)
    if weight_format != "fp16":
        round_weights(model, four=weight_format == "int4")
    expected, xml = torch_logits(model), exported(path, weight_format)
    # 16 bits hold most sources exactly, and the products of other types to 2^-11.
    bound = 1e-4 if weight_format == "fp16" and source in EXACT_IN_16_BITS else 0.02
    paged, stateful = opened(xml), ov.Core().compile_model(xml, "CPU", EXACT)
    for chunks in ([IDS], [IDS[:5], IDS[5:6], IDS[6:]]):
        assert abs(paged_logits(paged, *chunks) - expected).max() < bound
        assert abs(stateful_logits(stateful, *chunks) - expected).max() < bound
    assert weight_format == "fp16" or abs(expected - exact).max() > 2 * bound
    paged.min_tokens = 2  # the engine pads single tokens
    require_equal_bits(paged)
    draft = opened(exported(path, "int4")) if weight_format != "int4" else paged
    alone, drafted = (answer_rounds(paged, draft, draft_tokens) for draft_tokens in (0, 4))
    assert toy.answer_ids(drafted) == toy.answer_ids(alone)
    assert any(round_.drafted for round_ in drafted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("llama", LLAMA3),
        ("qwen2", {"num_key_value_heads": 4}),
        ("qwen3", {"head_dim": 64}),
        ("phi3", {}),
        ("smollm3", TIED | {"no_rope_layers": [0, 1, 1, 0]}),
        ("granite", {}),
        ("olmo2", {}),
        ("phi3", tiny_gguf.LONG),  # turns a part of each head
        ("gemma3", {}),  # attends to a window
        ("gptneox", {"rotary_pct": 1.0}),
        ("gptneox", {}),
        ("gpt2", {}),
    ],
    ids=str,
)
def test_kernels_compute_decoders_of_many_families(tmp_path, family, own):
    model = tiny_gguf.torch_model(family, **own)
    model = tiny_gguf.saved(tmp_path / "model", model, "float32")
    xml = exported(tmp_path / "model", "int8")
    round_weights(model, four=False)
    require_kernels(xml, torch_logits(model))


def test_kernels_compute_dolly_as_optimum_intel_exports_it(tiny_home):
    """One product gives queries, keys and values of every head, a part of each head is turned, and
    the 50,280 outputs do not fill the last tile."""
    xml = ir_folder(tiny_home, "dolly", "int8") / model_files.MODEL
    require_kernels(xml, paged_logits(opened(xml), IDS[:5], IDS[5:6], IDS[6:]))


def require_kernels(xml: Path, expected: np.ndarray) -> None:
    """The kernels give these logits of IDS, but for activations of 8 bits."""
    pytest.importorskip("llvmlite")
    paged = PagedModel(xml, ModelSettings(properties=OWN))
    differences = abs(paged_logits(paged, IDS[:5], IDS[5:6], IDS[6:]) - expected)
    assert differences.max() < 0.2 * expected.std()
    require_equal_bits(paged)


def test_an_interrupt_of_compiling_stays_one(tiny_home, monkeypatch):
    """It is no error for which a draft would be compiled in another way."""
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(forward, "pack", Mock(side_effect=KeyboardInterrupt))
    xml = ir_folder(tiny_home, "dolly", "int8") / model_files.MODEL
    with pytest.raises(KeyboardInterrupt):
        PagedModel(xml, ModelSettings(properties=OWN))


def require_equal_bits(paged: PagedModel) -> None:
    """Of forwards of 1 to 8 tokens, each time in place of tokens that were rejected."""
    ids = np.random.default_rng(0).integers(0, 400, 20).tolist()
    with paged.new_sequence() as sequence:
        paged.forward([Run(sequence, ids[:4], 1)])
        expected = None
        for size in range(8, 0, -1):
            pieces = [ids[begin:][:size] for begin in range(4, len(ids), size)]
            runs = (Run(sequence, piece, len(piece), stepwise=True) for piece in pieces)
            rows = np.concatenate([paged.forward([run])[0].rows.copy() for run in runs])
            assert expected is None or np.array_equal(rows, expected), size
            expected = rows
            sequence.truncate(4)


def answer_rounds(target: PagedModel, draft: PagedModel, draft_tokens: int) -> list[Round]:
    models = {"target": target, "draft": draft}
    rounds, _ = toy.drive(toy.request(models, tuple(IDS), 16, draft_tokens), models)
    return rounds


EXACT_IN_16_BITS = ("float32", "float16", "bfloat16", Type.F16)


def round_weights(model, four: bool) -> None:
    import torch

    with torch.no_grad():
        for name, matrix in model.named_parameters():
            if matrix.ndim > 1:
                levels = rounded(matrix.numpy(), four and "embed_tokens" not in name)
                matrix.copy_(torch.from_numpy(levels))


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny-Q8_0.gguf"
    model = tiny_gguf.torch_model("llama")
    tiny_gguf.write(path, model, "llama", Type.Q8_0, llama__rope__scaling__type="none")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope__scale_linear", "rope__scaling__factor"])
def test_a_factor_of_positions_without_a_type_is_linear_as_in_llama_cpp(tmp_path, name):
    path, model = tmp_path / "scaled.gguf", tiny_gguf.torch_model("llama")
    tiny_gguf.write(path, model, "llama", Type.Q8_0, **{f"llama__{name}": 4.0})
    shape, _ = gguf_decoder.read_decoder(gguf_file.read(path))
    assert set(shape.rope_factors) == {4.0}


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_that_are_zero_or_tiny_give_finite_weights(bits):
    groups = np.zeros((5, 2, 64), np.float32)
    groups[1:, :, 3] = np.array([[1e-12], [-3e-8], [2e-6], [-1.0]])
    packed, scales = weights.quantized(groups, bits)
    stored = ov.Tensor({4: ov.Type.i4, 8: ov.Type.i8}[bits], ov.Shape(groups.shape))
    weights.raw_bytes(stored)[:] = packed
    made = ov.Model([ops.result(weights.compressed(stored, scales))], [])
    read = ov.Core().compile_model(made, "CPU")([])[0].reshape(groups.shape)
    assert abs(read - groups).max() < 1e-7 + 1e-3 * (bits == 8) and (read[0] == 0).all()


def test_simulated_roundings_change_more_with_larger_steps_and_nothing_without(tmp_path):
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.torch_model("llama"), "llama", Type.Q4_1)
    decoder, prompts = rounding.TorchDecoder(path), [[5, 6, 7, 8, 9], [5, 6, 17]]
    answers = decoder.answers(prompts, (0,))
    assert answers == [decoder.answers([prompt], (0,))[0] for prompt in prompts]
    assert decoder.logits(prompts, answers).argmax(-1).tolist() == sum(answers, [])
    ways = "file", "auto", "int8"
    results = rounding.simulated(decoder, ways, prompts, answers)
    nats = [sum(each["nats"] for each in differences) for _, differences in results]
    assert 0 < nats[0] < nats[1] < nats[2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e5])
def test_a_weight_that_is_no_finite_number_in_16_bits_is_refused(tmp_path, value):
    path = tmp_path / "weights"
    path.write_bytes(np.array([1.0, value, 2.0, 3.0], np.float32).tobytes())
    with pytest.raises(FetchError, match="weights that are no finite numbers"):
        weights.Tensor(path, 0, (2, 2), Type.F32).read(0, 2)


def test_a_part_of_a_matrix_with_columns_for_rows_is_read_alone(tmp_path):
    matrix = np.arange(6 * 8, dtype=np.float16).reshape(6, 8)
    (path := tmp_path / "weights").write_bytes(bytes(10) + matrix.tobytes())
    tensor = weights.Tensor(path, 10, (8, 6), Type.F16, swapped=8)
    assert np.array_equal(tensor.read(2, 5), matrix.T[2:5])
    assert np.array_equal(tensor.rows(np.arange(4, 8)).read(1, 3), matrix.T[5:7])
    os.truncate(path, 100)
    with pytest.raises(FetchError, match="was cut"):
        tensor.read(2, 8)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q4_K], ids=str)
def test_blocks_of_four_bits_stay_as_the_file_has_them(tmp_path, kind):
    rows, columns, offset = 4, 512, weights.FOURS[kind]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(size)
    stored = rng.integers(0, 256, (rows, columns // gguf.GGML_QUANT_SIZES[kind][0], size), np.uint8)
    factors = rng.uniform(0.01, 0.02, (*stored.shape[:2], min(offset, 4) // 2))
    factors[0, 0], factors[1, 0, 0] = 0, 0  # all weights of a block 0, or equal
    stored[..., : min(offset, 4)] = factors.astype(np.float16).view(np.uint8)
    expected = gguf.dequantize(stored.reshape(rows, -1), kind)
    (path := tmp_path / "weights").write_bytes(stored.tobytes())
    tensor = weights.Tensor(path, 0, (rows, columns), kind)
    tensors = {f"{name}.weight": tensor for name in ("blk.0.ffn_up", "token_embd")}
    file = weights.FileWeights(tensors, silent, "tiny", blocks=True)
    made = ov.Model([ops.result(file.matrix(name, rows, columns, 8)) for name in tensors], [])
    kinds = [
        node.get_element_type() for node in made.get_ops() if node.get_type_name() == "Constant"
    ]
    assert kinds.count(ov.Type.u4) == kinds.count(ov.Type.i8) == 1
    read = ov.Core().compile_model(made, "CPU", EXACT)([])[0]
    assert abs(read - expected).max() < 1e-3 * abs(expected).max()


@pytest.mark.parametrize(("memory", "four"), [(10**9, False), (10**5, True)])
def test_unasked_weights_have_8_bits_where_they_take_half_of_the_memory(
    tiny_file, tmp_path, monkeypatch, memory, four
):
    monkeypatch.setattr("specdemo.convert.exporting.memory_bytes", lambda: memory)
    export(tiny_file, tmp_path / "ir", "auto")
    model = ov.Core().read_model(tmp_path / "ir" / model_files.MODEL)
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    kinds = {node.get_element_type().to_string() for node in constants}
    assert "i8" in kinds and ("i4" in kinds) == four


def test_further_chat_templates_go_with_the_model(tmp_path):
    model = tiny_gguf.torch_model("llama")
    tiny_gguf.saved(tmp_path / "model", model, "float32")
    further = Path("additional_chat_templates/tool_use.jinja")
    (tmp_path / "model" / further).parent.mkdir()
    (tmp_path / "model" / further).write_text("{{ tools }}")
    xml = exported(tmp_path / "model", "int8")
    assert (xml.parent / further).read_text() == "{{ tools }}"


def test_the_command_exports_a_file(tiny_file, tmp_path, capsys):
    arguments = ["export", str(tiny_file), str(tmp_path / "out")]
    assert cli.main([*arguments, "--weight-format", "int4"]) == 0
    assert "holds the IR of tiny-Q8_0 (int4)" in capsys.readouterr().out
    assert paged_logits(opened(tmp_path / "out" / model_files.MODEL), IDS).shape[-1] > 256
    assert cli.main(["export", str(tmp_path / "out"), str(tmp_path / "again")]) == 2


def test_the_command_exports_what_a_run_of_the_file_would(tmp_path, capsys):
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.torch_model("llama"), "llama", Type.Q4_1)
    assert cli.main(["export", str(path), str(tmp_path / "out")]) == 0
    assert "holds the IR of tiny (int4)" in capsys.readouterr().out
    export(path, tmp_path / "run", "auto")
    one, other = (tmp_path / folder / model_files.MODEL for folder in ("out", "run"))
    assert one.with_suffix(".bin").read_bytes() == other.with_suffix(".bin").read_bytes()


def test_a_file_that_is_split_gives_the_same_model(tiny_file, tmp_path):
    model = tiny_gguf.torch_model("llama")
    tiny_gguf.write(tmp_path / "tiny.gguf", model, "llama", Type.Q8_0, parts=3)
    parts = sorted(tmp_path.glob("*.gguf"))
    names = [f"tiny-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    assert [path.name for path in parts] == names
    export(tiny_file, tmp_path / "whole", "int8")
    export(parts[1], tmp_path / "joined", "int8")
    for name in (model_files.WEIGHTS, "tokenizer.json", "config.json"):
        assert (tmp_path / "joined" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for name in ("tiny.gguf", "tiny-00001-of-00001.gguf"):
        for part in parts[:2]:
            shutil.copyfile(part, tmp_path / name)
            with pytest.raises(BadInput, match=rf"{name} is part of a model .* into 3 files: put"):
                gguf_file.read(tmp_path / name)
    order = tmp_path / "order-00001-of-00002.gguf", tmp_path / "order-00002-of-00002.gguf"
    for path, part in zip(order, parts[:2], strict=True):
        shutil.copyfile(part, path)
    with pytest.raises(BadInput, match="order-00001-of-00002.gguf is part of a model"):
        gguf_file.read(order[1])
    parts[0].unlink()
    with pytest.raises(BadInput, match=r"tiny-00001-of-00003.gguf is not beside it"):
        gguf_file.read(parts[1])


# Tokenizer and template


PRE_TOKENIZERS = (
    "qwen2",
    "gpt-2",
    "smollm",
    "refact",
    "llama-bpe",
    "smaug-bpe",
    "dbrx",
    "gpt-4o",
    "tekken",
)


@pytest.mark.slow
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_tokens_are_those_of_the_reference_tokenizer_and_round_trip(tmp_path, pre):
    path, model = tmp_path / "tiny.gguf", tiny_gguf.torch_model("llama")
    tiny_gguf.write(path, model, "llama", pre=pre, tokenizer__ggml__bos_token_id=411)
    gguf_tokenizer.write_tokenizer(gguf_file.read(path), tmp_path)
    own, reference = Tokenizer(tmp_path / "tokenizer.json"), reference_tokenizer(pre)
    for text in TEXTS:
        ids = own.encode(text, special=False)
        assert own.decode(ids) == (text if pre != "qwen2" else text.replace("e\u0301", "é"))
        assert own.encode(text) == reference.encode(text, add_special_tokens=False).ids
    assert own.special_ids == {reference.token_to_id(token) for token in tiny_gguf.SPECIAL}
    assert own.encode("a", bos=True)[:-1] == ([411] if pre in ("llama-bpe", "tekken") else [])


def test_tokens_of_sentence_pieces_are_joined_by_their_scores_and_round_trip(tmp_path):
    fields = tiny_gguf.sentence_pieces()
    gguf_tokenizer.write_tokenizer(tiny_gguf.vocabulary_file(tmp_path, fields), tmp_path)
    tokens = fields["tokens"]
    own = Tokenizer(tmp_path / "tokenizer.json")
    for text in (*TEXTS, "Give three tips for staying healthy."):
        ids = own.encode(text, special=False)
        assert own.decode(ids) == text
        stream = TextStream(own)
        assert "".join(map(stream.push, ids)) + stream.rest() == text
        assert ids == joined_by_score(text, dict(zip(tokens, range(len(tokens)), strict=True)))
    assert own.encode("</s>a", bos=True)[:2] == [1, 2]
    assert 2 not in own.encode("</s>a", special=False)


@pytest.mark.parametrize(
    ("general", "strips"),
    [
        ({"architecture": "phi3"}, True),
        ({"architecture": "llama", "name": "Phi-3-mini-128k"}, True),
        ({"architecture": "llama", "name": "Phi 4"}, False),
    ],
)
def test_white_space_after_a_token_of_phi3_is_dropped(tmp_path, general, strips):
    """As the original tokenizer's flags say, which GGUF files do not have."""
    fields = tiny_gguf.sentence_pieces("<|user|>", "<|end|>", "<|assistant|>", "<|endoftext|>")
    file = tiny_gguf.vocabulary_file(tmp_path, fields)
    file.fields.update({f"general.{name}": value for name, value in general.items()})
    gguf_tokenizer.write_tokenizer(file, tmp_path)
    own = Tokenizer(tmp_path / "tokenizer.json")
    user, end, assistant, of_text = range(own.vocabulary_size - 4, own.vocabulary_size)
    ids = own.encode("<|user|>\nHi<|end|> \n<|assistant|>\n")
    assert (ids == [user, *own.encode("Hi"), end, assistant]) == strips
    assert own.encode("<|endoftext|>\nHi") == [of_text, *own.encode("\nHi")]


def joined_by_score(text: str, ids: dict[str, int]) -> list[int]:
    """SentencePiece's rule, as llama.cpp has it, for tokens in the order of their scores."""
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while pairs := [
        (ids[left + right], place)
        for place, (left, right) in enumerate(itertools.pairwise(parts))
        if left + right in ids
    ]:
        _, place = min(pairs)
        parts[place : place + 2] = ["".join(parts[place : place + 2])]
    pieces = [
        [part] if part in ids else [f"<0x{byte:02X}>" for byte in part.encode()] for part in parts
    ]
    return [ids[token] for piece in pieces for token in piece]


O200K = "|".join(  # as tiktoken has it
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def reference_tokenizer(pre: str):
    """The tokenizer that transformers makes of the same tokens and merges."""
    from transformers import GPT2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX, Qwen2Tokenizer

    tokens, merges = tiny_gguf.vocabulary()
    ids = {token: id for id, token in enumerate(tokens)}
    kind = Qwen2Tokenizer if pre == "qwen2" else GPT2Tokenizer
    tokenizer = kind(vocab=ids, merges=[tuple(pair.split()) for pair in merges])._tokenizer
    tokenizer.add_special_tokens(list(tiny_gguf.SPECIAL))
    tokenizer.add_tokens([tiny_gguf.ADDED])
    words = dict.fromkeys(
        ("llama-bpe", "smaug-bpe", "dbrx"), PRETOKENIZE_REGEX.replace(r"\p{N}|", r"\p{N}{1,3}|")
    )
    tekken = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
    if pattern := (words | {"gpt-4o": O200K, "tekken": tekken}).get(pre):
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    elif pre in ("smollm", "refact"):
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer


def test_the_files_template_asks_without_thinking_unless_told_to(tiny_file, tmp_path):
    gguf_tokenizer.write_tokenizer(gguf_file.read(tiny_file), tmp_path)
    template = chat_template(tmp_path)
    assert template.text(Chat([Message("user", "Hi")])).endswith("assistant\n<think>")
    thinking = replace(template, thinking=True)
    assert thinking.text(Chat([Message("user", "Hi")])).endswith("assistant\n")
    ids, limit = configuration.read_config(tmp_path)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert ids == {tokenizer.token_id(token) for token in ("<|im_end|>", "<|endoftext|>")}
    assert limit == 256


@pytest.mark.parametrize("kind", [TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.CONTROL])
def test_a_tokens_role_decides_what_it_does_whatever_the_file_calls_it(tiny_file, tmp_path, kind):
    read = gguf_file.read(tiny_file)
    tokens, kinds = (read.fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    start, end, think = map(tokens.index, ("<|im_start|>", "<|im_end|>", tiny_gguf.ADDED))
    kinds[start] = kinds[end] = kind
    read.fields["tokenizer.ggml.eos_token_id"] = tokens.index("<|endoftext|>")
    read.fields["tokenizer.chat_template.tool_use"] = "{{ tools }}{{ messages[0].content }}"
    gguf_tokenizer.write_tokenizer(read, tmp_path)
    tokenizer, template, stop_ids, _ = read_text_files(tmp_path)
    assert template.tools_jinja == "{{ tools }}{{ messages[0].content }}"
    assert end in stop_ids and tokenizer.decode([start, think, end]) == tiny_gguf.ADDED
    prompt = template.render("a<|im_end|>\n<|im_start|>system\nb<|think|>", tokenizer)
    assert [id for id in prompt if id in (start, end)] == [start, end, start]
    config = {"eos_token_id": tokens.index("<|endoftext|>")}  # of a model without turns
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert end in read_text_files(tmp_path)[2]


# What the engine needs of these graphs


@pytest.mark.slow
@pytest.mark.parametrize("computed_by", ["plugin", "kernels"])
def test_a_sliding_window_is_exact_across_its_edge(tmp_path, computed_by):
    """In sizes, after rollback, on a shared prefix, and in a batch; the window is not a multiple of
    a block, nor of the tokens of a forward."""
    import torch

    model = tiny_gguf.torch_model("gemma3", sliding_window=19)
    ids = np.random.default_rng(0).integers(0, 400, 72).tolist()
    if computed_by == "plugin":
        tiny_gguf.write(tmp_path / "tiny.gguf", model, "gemma3", Type.F16)
        paged = opened(exported(tmp_path / "tiny.gguf"))
    else:
        pytest.importorskip("llvmlite")
        tiny_gguf.saved(tmp_path / "model", model, "float32")
        xml = exported(tmp_path / "model", "int8")
        round_weights(model, four=False)
        paged = PagedModel(xml, ModelSettings(properties=OWN))

    def verify(sequence, tokens: list[int], rows: int = 0) -> np.ndarray:
        run = Run(sequence, tokens, rows or len(tokens), stepwise=True)
        return paged.forward([run])[0].rows.copy()

    with paged.new_sequence() as whole:
        expected = verify(whole, ids)
        for size in (2, 3, 5, 8):
            with paged.new_sequence() as sequence:
                pieces = [verify(sequence, ids[begin:][:size]) for begin in range(0, 64, size)]
                assert np.array_equal(np.concatenate(pieces), expected[: size * len(pieces)])
        with paged.fork(whole, 33) as sequence, paged.fork(whole, 60) as other:
            verify(sequence, ids[:8])
            sequence.truncate(33)
            assert np.array_equal(verify(sequence, ids[33:41], 2), expected[39:41])
            sequence.truncate(33)
            batch = [(sequence, 33, 5), (other, 60, 4)]
            runs = [Run(to, ids[at:][:size], size, stepwise=True) for to, at, size in batch]
            together = [logits.rows.copy() for logits in paged.forward(runs)]
            for rows, (_, at, size) in zip(together, batch, strict=True):
                assert np.array_equal(rows, expected[at : at + size])
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    # Activations of kernels have 8 bits; a window of one more or less differs by 1.4 deviations.
    assert abs(logits - expected).max() < (1e-4 if computed_by == "plugin" else 0.3 * logits.std())


@pytest.mark.slow
@pytest.mark.parametrize("source", ["float32", Type.F16])
def test_phi3_is_right_up_to_the_context_of_its_short_factors_which_ends_texts(tmp_path, source):
    import torch

    model, path = tiny_gguf.torch_model("phi3", **tiny_gguf.LONG), tmp_path / "model"
    if source == "float32":
        tiny_gguf.saved(path, model, source)
    else:
        tiny_gguf.write(path, model, "phi3", source)
    xml = exported(path)
    _, limit = configuration.read_config(xml.parent)
    assert limit == 64
    ids = np.random.default_rng(0).integers(0, 400, limit + 1)
    with torch.no_grad():
        within, beyond = (model(torch.tensor(ids[None, :size])).logits[0] for size in (64, 65))
    rows = paged_logits(opened(xml), ids.tolist())
    assert abs(rows[:64] - within.numpy()).max() < 1e-4
    assert abs(rows - beyond.numpy()).max() > 0.1  # the long factors, which would change the cache


@pytest.mark.slow
def test_long_factors_are_never_needed_or_their_lack_is_said(tmp_path):
    """The original context may be named beside the factors alone, or be the default."""
    model, path = tiny_gguf.torch_model("phi3", **tiny_gguf.LONG), tmp_path / "phi3.gguf"
    tiny_gguf.write(path, model, "phi3")
    shape, _ = gguf_decoder.read_decoder(file := gguf_file.read(path))
    scale = file.fields.pop("phi3.rope.scaling.attn_factor")
    assert (
        gguf_decoder.read_decoder(file)[0].rope_scale
        == pytest.approx(scale)
        == shape.rope_scale
        > 1
    )
    del file.fields["phi3.rope.scaling.original_context_length"]
    file.fields["phi3.context_length"] = 131_072
    gguf_decoder.read_decoder(file)
    gguf_tokenizer.write_tokenizer(file, tmp_path)
    assert configuration.read_config(tmp_path)[1] == 4096
    del file.tensors["rope_factors_short.weight"]
    with pytest.raises(BadInput, match="rope_factors_short.weight, which its context of 131,072"):
        gguf_decoder.read_decoder(file)
    del file.fields["phi3.context_length"]
    gguf_decoder.read_decoder(file)


LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["phi3", "llama"])
@pytest.mark.parametrize("above", [{}, {"original_max_position_embeddings": 2048}])
@pytest.mark.parametrize("beside", [{}, {"original_max_position_embeddings": 1024}])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_the_context_of_short_factors_is_that_of_transformers(tmp_path, kind, above, beside, name):
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    data = {**TINY, "model_type": kind, "max_position_embeddings": 8192, "pad_token_id": 0}
    data |= {**above, name: LONGROPE | beside}
    (tmp_path / "config.json").write_text(json.dumps(data))
    reference = AutoConfig.from_pretrained(tmp_path)
    _, scale = ROPE_INIT_FUNCTIONS["longrope"](reference, "cpu")
    original = reference.rope_parameters["original_max_position_embeddings"]
    shape = checkpoints.shape_of(data, CONFIG)
    assert shape.rope_scale == pytest.approx(scale)
    assert configuration.read_config(tmp_path)[1] == original
    reference.save_pretrained(tmp_path)
    assert configuration.read_config(tmp_path)[1] == original


LAYERS = ["full_attention", "sliding_attention"] * 2
WINDOW, USED = {"sliding_window": 5}, {"use_sliding_window": True}
WINDOWS = WINDOW, WINDOW | USED, {**WINDOW, **USED, "layer_types": LAYERS}
WINDOWS += {**WINDOW, "layer_types": LAYERS}, {**WINDOW, "sliding_window_pattern": 2}


@pytest.mark.slow
@pytest.mark.parametrize("own", WINDOWS, ids=str)
@pytest.mark.parametrize(
    "kind", "llama mistral granite olmo2 smollm3 qwen2 qwen3 phi3 gemma3_text".split()
)
def test_layers_attend_to_a_window_where_they_do_in_transformers(kind, own):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    data = {**TINY, "num_hidden_layers": 4, "num_key_value_heads": 4, "head_dim": 32}
    data |= {"model_type": kind, "pad_token_id": 0, **own}
    shape = checkpoints.shape_of(data, CONFIG)
    if shape is None:  # left to optimum-intel
        assert kind in ("smollm3", "qwen2", "qwen3") and own == WINDOW | USED
        return
    if own == WINDOWS[3] and kind in ("qwen2", "qwen3"):
        assert not shape.sliding  # transformers fails
        return
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**data), attn_implementation="eager"
    )
    with torch.no_grad():
        seen = model(torch.tensor([IDS]), output_attentions=True).attentions
    widths = [int(weights[0, 0, -1].count_nonzero()) for weights in seen]
    assert set(widths) <= {5, len(IDS)}
    assert {layer for layer, width in enumerate(widths) if width == 5} == shape.sliding


# What cannot be converted

TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"intermediate_size": 256, "vocab_size": 1000, "max_position_embeddings": 256}
BUILT, LEFT = "", "optimum-intel"
LOCALLY_SCALED = {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"model_type": "gpt_neox"}, BUILT),
        ({"model_type": "phi"}, LEFT),
        ({"model_type": ["llama"], "num_attention_heads": 0}, LEFT),  # not used, so not checked
        ({"hidden_act": "relu"}, LEFT),
        ({"model_type": "gpt_neox", "hidden_act": "relu"}, LEFT),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, LEFT),
        ({"model_type": "mistral", "sliding_window": None}, BUILT),
        ({"model_type": "mistral", "sliding_window": 4096}, BUILT),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096}, LEFT),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}, BUILT),
        ({"final_logit_softcapping": 30.0}, LEFT),
        ({"quantization_config": {"quant_method": "gptq"}}, LEFT),
        ({"model_type": "gpt2", "scale_attn_weights": False}, LEFT),
        ({"model_type": "gemma3_text", "rope_parameters": LOCALLY_SCALED}, LEFT),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be greater than or equal"),
        ({"hidden_size": "8"}, "hidden_size is '8'; it must be a whole number"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000; it must be less than or"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"rope_scaling": "x"}, "rope_scaling is 'x'; it must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"num_attention_heads": 256}, "256 heads of 0 values"),
        ({"num_key_value_heads": 3}, "4 heads of 32 values, .* and 3 heads of keys do not go"),
    ],
    ids=str,
)
def test_a_configuration_is_built_left_to_optimum_intel_or_refused_with_a_reason(change, outcome):
    data = {**TINY, "model_type": "llama", **change}
    if outcome in (BUILT, LEFT):
        assert (checkpoints.shape_of(data, CONFIG) is None) == (outcome == LEFT)
    else:
        with pytest.raises(BadInput, match=f"^config.json cannot be used: {outcome}"):
            checkpoints.shape_of(data, CONFIG)


def test_a_null_stands_for_the_default_of_the_family():
    data = {**TINY, "model_type": "gpt2", **dict.fromkeys(TIED)}
    assert checkpoints.shape_of(data, CONFIG).tied


@pytest.mark.slow
def test_smollm3_may_have_an_interval_for_the_layers_that_are_not_rotated():
    from transformers import SmolLM3Config

    own = {**TINY, "num_hidden_layers": 7, "no_rope_layer_interval": 3}
    shape = checkpoints.shape_of({**own, "model_type": "smollm3"}, CONFIG)
    rotated = [int(index not in shape.unrotated) for index in range(7)]
    assert rotated == SmolLM3Config(**own).no_rope_layers == [1, 1, 0, 1, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("smollm3", "tied", True),
        ("smollm3", "rope_base", 2e6),
        ("olmo2", "epsilon", 1e-5),
        ("phi3", "epsilon", 1e-5),
        ("granite", "attention_scale", 1.0),
        ("qwen3", "width", 128),
        ("gemma3_text", "window", 4096),
    ],
)
def test_what_a_configuration_lacks_is_as_in_transformers(kind, name, value):
    """Files of before transformers 5 lack what all its models have in common, such as SmolLM3's
    tied output."""
    from transformers import CONFIG_MAPPING

    stored = {"attention_scale": "attention_multiplier", "epsilon": "rms_norm_eps"}
    stored |= {"tied": "tie_word_embeddings", "width": "head_dim", "window": "sliding_window"}
    config = CONFIG_MAPPING[kind]()
    reference = config.rope_parameters["rope_theta"] if name == "rope_base" else None
    assert value == (reference or getattr(config, stored.get(name, ""), None))
    assert getattr(checkpoints.shape_of({**TINY, "model_type": kind}, CONFIG), name) == value


def test_only_the_shards_that_the_index_names_are_read(tmp_path):
    weight, index = np.ones(4, np.float32), tmp_path / "model.safetensors.index.json"
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    for number, name in enumerate(("model-1-of-1", "model-2-of-2", "own")):
        data = header({f"tensor{number}": entry})(b"") + weight.tobytes()
        (tmp_path / f"{name}.safetensors").write_bytes(data)
    assert list(checkpoints.tensors_of(tmp_path)) == ["tensor0", "tensor1", "tensor2"]
    index.write_text(json.dumps({"weight_map": {"tensor0": "model-1-of-1.safetensors"}}))
    assert list(checkpoints.tensors_of(tmp_path)) == ["tensor0", "tensor2"]
    index.write_text(json.dumps({"weight_map": {"a": "model-1-of-2.safetensors"}}))
    with pytest.raises(FetchError, match="lacks model-1-of-2.safetensors, which its index names"):
        checkpoints.tensors_of(tmp_path)


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:size]


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


def in_header(name: bytes, *values: int) -> Callable[[bytes], bytes]:
    """The tensor `name` gets other dimensions or another type."""
    change = struct.pack("<QQI"[: len(values) + 1], *values)

    def changed(data: bytes) -> bytes:
        offset = data.index(name) + len(name) + 4
        return data[:offset] + change + data[offset + len(change) :]

    return changed


def header(entries: dict) -> Callable[[bytes], bytes]:
    data = json.dumps(entries).encode()
    return lambda _: struct.pack("<Q", len(data)) + data


def begin_of(values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, values)


def array_of(count: int) -> bytes:
    return struct.pack("<Q4sIIQ", 4, b"name", GGUFValueType.ARRAY, GGUFValueType.UINT8, count)


VALUES, TEXT_OF_4 = b"blk.0.attn_v.weight", b"\x08\0\0\0\4\0\0\0\0\0\0\0"
INFINITE = np.float16(np.inf).tobytes()
GGUF, QWEN3, CONFIG_JSON = "llama.gguf", "qwen3.gguf", "model/config.json"
WEIGHTS = "model/model.safetensors"
DAMAGED = "damaged or truncated"


@pytest.fixture(scope="module")
def sources_folder(tiny_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    shutil.copyfile(tiny_file, folder / GGUF)
    tiny_gguf.write(folder / QWEN3, tiny_gguf.torch_model("qwen3"), "qwen3")
    model = tiny_gguf.torch_model("gptneox", vocab_size=1000)
    tiny_gguf.saved(folder / "model", model, "float32", shard="1GB")
    return folder


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        *((GGUF, cut(size), f"{DAMAGED}|not a GGUF") for size in (0, 3, 20, 30, 5000, 150_000)),
        (GGUF, lambda _: begin_of(1) + struct.pack("<Q", 150 << 30), "more than 64 MB"),
        (GGUF, lambda _: begin_of(1) + array_of(200_000_000), "entries where 1048576 can be read"),
        (GGUF, in_header(VALUES, 128, 64, 99), "unknown type 99"),
        (GGUF, in_header(VALUES, 128, 64, Type.I8), "type I8, which cannot be read; choose"),
        (GGUF, in_header(VALUES, 64, 128), r"attn_v.weight should be \[64, 128\]"),
        (GGUF, in_header(VALUES, 127, 64), DAMAGED),
        (GGUF, in_header(VALUES, 2**40, 2**40), DAMAGED),
        (QWEN3, lambda data: data[:-100] + INFINITE + data[-98:], "damaged: .* no finite numbers"),
        (GGUF, swap(b"llama", b"mamba"), "'mamba'; GGUF files of llama, qwen2, qwen3, .* can be"),
        (GGUF, swap(b"GGUF\x03", b"GGUF\x07"), "of version 7"),
        (GGUF, swap(b"output_norm", b"output_nurm"), "weight should be .128., and there is none"),
        (GGUF, swap(b"llama.block_count", b"llama.block_kount"), "num_hidden_layers is missing"),
        (GGUF, swap(b"ggml.merges", b"ggml.merged"), "damaged vocabulary"),
        (GGUF, swap("Ġ t".encode(), "Ġ_t".encode()), r"vocabulary \([^\n]*\); fetch it again.$"),
        (GGUF, swap(b"qwen2", b"qwenX"), "a vocabulary of the kind 'gpt2', 'qwenX'; Sentence"),
        (GGUF, swap(TEXT_OF_4 + b"gpt2", TEXT_OF_4 + b"bert"), "kind 'bert', 'qwen2'"),
        (GGUF, swap(b"none", b"yarn"), r"scales its positions \('yarn'\): not supported"),
        (GGUF, swap(b"token_embd", b"token_embt"), "it has no embedding"),
        (QWEN3, swap(b"qwen3", b"llama"), "attn_k_norm.weight, which llama has not|attn_q_norm"),
        *((WEIGHTS, cut(size), DAMAGED) for size in (0, 300, 100_000)),
        (WEIGHTS, None, "holds no PyTorch checkpoint .*safetensors"),
        (WEIGHTS, header({"a": {"dtype": ["F32"]}}), DAMAGED),
        (WEIGHTS, header({"a": {"pad": "a" * 5_000_000}}), DAMAGED),
        (CONFIG_JSON, swap(b'size": 1000', b'size": 999'), r"be \[999, 128\], and it is \[1000"),
        (
            CONFIG_JSON,
            swap(b"gpt_neox", b"opt"),
            r"\('opt'\) .* \(llama, .*\), .* optimum-intel exp",
        ),
    ],
)
def test_what_cannot_be_converted_leaves_nothing(sources_folder, tmp_path, name, change, message):
    source = Path(name).parts[0]
    copy = shutil.copytree if source == "model" else shutil.copyfile
    copy(sources_folder / source, tmp_path / source)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if change is not None:
        assert change(data) != data
        (tmp_path / name).write_bytes(change(data))
    with pytest.raises((BadInput, FetchError, MissingPackage), match=message):
        export(tmp_path / source, tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == [source]


PIECES = {"model": "llama", "bos_token_id": 0, "add_bos_token": True}


@pytest.mark.parametrize(
    ("tokens", "kind", "words"),
    [
        (["<unk>", "a" * 400_000], TokenType.NORMAL, "tokens.1 is 'a.*at most 1024 characters"),
        ([f"<{number}>" for number in range(20_000)], TokenType.CONTROL, "more than 10,000 tokens"),
        (
            [f"{number}" * 150 for number in range(10_000)],
            TokenType.NORMAL,
            "more than 4,194,304 characters",
        ),
        (["a" * size for size in range(1, 1025)], TokenType.NORMAL, "split in too many ways"),
    ],
    ids=["a long token", "many special tokens", "many characters", "many merges"],
)
def test_a_vocabulary_that_would_take_minutes_is_refused_before_that(
    tmp_path, monkeypatch, tokens, kind, words
):
    """Texts that are too long before their merges are looked for, all before what the library makes
    of merges and of tokens that are not of a text."""
    dear = {name: Mock(wraps=getattr(gguf_tokenizer, name)) for name in ("_of_pieces", "BPE")}
    dear["AddedToken"] = Mock()
    for name, call in dear.items():
        monkeypatch.setattr(gguf_tokenizer, name, call)
    own = {"tokens": tokens, "token_type": [kind] * len(tokens), "scores": [0.0] * len(tokens)}
    with pytest.raises(BadInput, match=words):
        gguf_tokenizer.write_tokenizer(tiny_gguf.vocabulary_file(tmp_path, PIECES | own), tmp_path)
    assert dear["_of_pieces"].called == ("characters" not in words)
    assert not any(merges for (_, merges), _ in dear["BPE"].call_args_list)
    dear["AddedToken"].assert_not_called()


def test_a_header_is_read_up_to_a_bound_and_arrays_that_are_not_used_are_dropped(tmp_path):
    path, array = tmp_path / "arrays.gguf", array_of(1_000_000) + bytes(1_000_000)
    path.write_bytes(begin_of(values=1) + array)
    assert gguf_file.read(path).fields == {"name": None}
    path.write_bytes(begin_of(values=100) + 68 * array)
    with pytest.raises(BadInput, match="header has more than 64 MB"):
        gguf_file.read(path)
    os.truncate(path, 0)


def test_parts_that_are_not_there_are_not_looked_for(tmp_path, monkeypatch):
    tried, is_file = [], Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: tried.append(path) or is_file(path))
    (path := tmp_path / "x-00001-of-99999.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadInput, match="x-00002-of-99999.gguf is not beside it"):
        gguf_file.read(path)
    assert len(tried) == 2


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(tiny_file, tmp_path, monkeypatch):
    path = tmp_path / "own.gguf"
    path.write_bytes(tiny_file.read_bytes())
    read = weights.Tensor.read

    def replacing(*arguments):
        os.utime(path, (1, 1))
        return read(*arguments)

    monkeypatch.setattr(weights.Tensor, "read", replacing)
    with pytest.raises(FetchError, match="was replaced while it was read"):
        export(path, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_a_gguf_file_is_known_by_its_content_and_may_be_alone_in_a_folder(tiny_file, tmp_path):
    for path in ("tiny.GGUF", "folder/tiny.gguf", "5f7c"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(tiny_file, tmp_path / path)
    paths = {"tiny.GGUF": "tiny.GGUF", "folder": "folder/tiny.gguf", "5f7c": "5f7c"}
    for given, path in paths.items():
        source = sources.source_of(str(tmp_path / given), "model", "int8")
        assert (source.repo, source.name) == (str(tmp_path / path), Path(path).stem)
    (tmp_path / "other.gguf").touch()
    with pytest.raises(BadInput, match=r"several models; name one of tiny.GGUF, other.gguf, 5f7c"):
        sources.source_of(str(tmp_path), "model", "int8")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("adapter", r"an adapter \(LoRA\), no model; merge it into its model first"),
        ("mmproj", "of the type 'mmproj', no model; name the model's own file"),
    ],
)
def test_a_file_that_is_no_model_is_called_what_it_is(tiny_file, kind, words):
    file = replace(gguf_file.read(tiny_file), fields={"general.type": kind})
    with pytest.raises(BadInput, match=f"^tiny-Q8_0.gguf is {words}"):
        gguf_decoder.read_decoder(file)


def test_a_gguf_file_of_a_repository_is_named_by_its_kind_or_by_a_part():
    name = "Qwen/Some-GGUF:Q4_K_M"
    assert sources.source_of(name, "model", "int4").name == name
    names = ["a-q4_k_m.gguf", "a-q8_0-00001-of-00002.gguf", "a-q8_0-00002-of-00002.gguf", "x.json"]
    assert hub._choose(names, "o/n:Q4_K_M") == ["a-q4_k_m.gguf"]
    assert hub._choose(names, "o/n:q8_0") == names[1:3]
    assert hub._choose(names, "o/n:a-q8_0-00002-of-00002.gguf") == names[1:3]
    with pytest.raises(BadInput, match="Hub: a-q4_k_m, a-q8_0"):
        hub._choose(names, "o/n:Q5_K_M")
    with pytest.raises(BadInput, match="o/n:FILE.gguf"):
        hub._choose(names, "o/n")
