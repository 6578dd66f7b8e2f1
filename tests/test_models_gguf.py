"""GGUF files become IR: torch's logits, the reference's tokens, and one sentence for a bad file."""

from __future__ import annotations

import itertools
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import tiny_gguf
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType
from test_models_decoder import EXACT, IDS
from tokenizers import Regex, pre_tokenizers

from specdemo.engine.model import ModelSettings, PagedModel, Run
from specdemo.errors import BadInput, FetchError, ModelError
from specdemo.models import gguf_file, hub, ir, sources, vocabulary, weights
from specdemo.models.export import export
from specdemo.models.templates import Message, chat_template
from specdemo.models.tokenizer import Tokenizer

IDS = IDS % 500
TEXTS = (
    "def f(a, b):\n\treturn a+b  # x\r\n\r\n\n  indented   ",
    "It's 2026-11-23, 3.14159 and 1234567; WE'LL see... don't!",
    "naïve café — “quotes” ½ ٣٤ \u00a0 日本語のテキスト 한국어 русский",
    "👍🏽👩‍👩‍👧 e\u0301 <|im_end|> <think> <|im_start|>user\n",
    " ",
    "",
)


def logits_of(folder: Path) -> np.ndarray:
    paged = PagedModel(folder / ir.MODEL, ModelSettings("CPU", tuple(EXACT.items())))
    with paged.new_sequence() as sequence:
        [first] = paged.forward([Run(sequence, IDS[0, :5].tolist(), 5)])
        rows = [first.rows.copy()]
        for id in IDS[0, 5:].tolist():
            rows.append(paged.forward([Run(sequence, [id], 1)])[0].rows.copy())
    return np.concatenate(rows)


def torch_logits(model) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(IDS)).logits[0].numpy()


@pytest.mark.parametrize(
    ("architecture", "kind", "own"),
    [
        ("llama", Type.F16, {"rope_parameters": tiny_gguf.LLAMA3, "attention_bias": True}),
        ("llama", Type.Q4_1, {}),
        ("qwen2", Type.Q8_0, {}),
        ("qwen2", Type.Q5_0, {"num_key_value_heads": 4}),
        ("qwen3", Type.BF16, {"tie_word_embeddings": True}),
        ("qwen3", Type.Q4_0, {"head_dim": 64, "num_attention_heads": 4}),
    ],
    ids=str,
)
def test_logits_of_a_gguf_file_and_of_its_checkpoint_are_torchs(tmp_path, architecture, kind, own):
    model = tiny_gguf.torch_model(architecture, **own)
    tiny_gguf.write(tmp_path / "tiny.gguf", model, architecture, kind)
    model.save_pretrained(tmp_path / "saved")
    expected = torch_logits(model)
    for source in (tmp_path / "tiny.gguf", tmp_path / "saved"):
        export(source, tmp_path / f"{source.name}-ir", "fp16")
        # 16 bits hold F16 exactly, and the products of other types to 2^-11.
        bound = 1e-4 if kind == Type.F16 else 0.02
        assert abs(logits_of(tmp_path / f"{source.name}-ir") - expected).max() < bound


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory) -> Path:
    """IR in the shape of Qwen3."""
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_gguf.write(folder / "tiny.gguf", tiny_gguf.torch_model("qwen3"), "qwen3", Type.Q8_0)
    export(folder / "tiny.gguf", folder / "ir", "int8")
    return folder / "ir" / ir.MODEL


def test_qwen3_goes_back_behind_rejected_tokens_bit_by_bit(qwen3):
    paged = PagedModel(qwen3, ModelSettings("CPU", tuple(EXACT.items())))
    ids = IDS[0].tolist()

    def verify(sequence, tokens: list[int]) -> np.ndarray:
        run = Run(sequence, tokens, len(tokens), stepwise=True)
        return paged.forward([run])[0].rows.copy()

    with paged.new_sequence() as sequence:
        verify(sequence, ids[:6])
        expected = verify(sequence, ids[6:10])
        for rejected in (1, 4):
            sequence.truncate(6)
            verify(sequence, ids[:rejected])
            sequence.truncate(6)
            assert np.array_equal(verify(sequence, ids[6:10]), expected)


def test_recurrent_layers_are_refused_in_one_sentence(qwen3, tmp_path):
    model = ov.Core().read_model(qwen3)
    first = ops.constant(np.zeros((1, 8, 4), np.float32))
    state = ops.read_value(first, "ssm", ov.Type.f32, ov.PartialShape([-1, 8, 4]))
    model.add_sinks([ops.assign(state, "ssm")])
    ov.save_model(model, tmp_path / "recurrent.xml")
    with pytest.raises(ModelError, match="has recurrent layers, .*; choose a model"):
        PagedModel(tmp_path / "recurrent.xml", ModelSettings("CPU", tuple(EXACT.items())))


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny-Q8_0.gguf"
    tiny_gguf.write(path, tiny_gguf.torch_model("llama"), "llama", Type.Q8_0)
    return path


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rounded_weights_keep_the_shape_of_the_logits(file, tmp_path, kind):
    export(file, tmp_path / kind, kind)
    export(file, tmp_path / "fp16", "fp16")
    exact, rounded = (logits_of(tmp_path / one) for one in ("fp16", kind))
    assert np.corrcoef(exact.ravel(), rounded.ravel())[0, 1] > (0.999 if kind == "int8" else 0.85)


def test_a_file_that_is_split_gives_the_same_model(file, tmp_path):
    data, whole = file.read_bytes(), gguf_file.read(file)
    header = data[:24]
    # Two parts with the same metadata: the tensors of the second are found in the first.
    names = [f"tiny-{part:05}-of-00002.gguf" for part in (1, 2)]
    for name in names:
        (tmp_path / name).write_bytes(data)
    assert header[:4] == b"GGUF"
    assert set(gguf_file.read(tmp_path / names[1]).tensors) == set(whole.tensors)
    (tmp_path / names[0]).unlink()
    with pytest.raises(BadInput, match=r"tiny-00001-of-00002.gguf is not beside it"):
        gguf_file.read(tmp_path / names[1])


# Tokenizer and template


@pytest.mark.parametrize("pre", ["qwen2", "gpt-2", "smollm", "llama-bpe"])
def test_tokens_are_those_of_the_reference_tokenizer_and_round_trip(tmp_path, pre):
    path = tmp_path / "tiny.gguf"
    fields = {"tokenizer__ggml__bos_token_id": (411, GGUFValueType.UINT32)}
    tiny_gguf.write(path, tiny_gguf.torch_model("llama"), "llama", pre=pre, **fields)
    vocabulary.write(gguf_file.read(path), tmp_path)
    own, reference = Tokenizer(tmp_path / "tokenizer.json"), reference_tokenizer(pre)
    for text in TEXTS:
        ids = own.encode(text, special=False)
        assert own.decode(ids) == (text if pre != "qwen2" else text.replace("e\u0301", "é"))
        assert own.encode(text) == reference.encode(text, add_special_tokens=False).ids
    assert own.special_ids == {reference.token_to_id(one) for one in tiny_gguf.SPECIAL}
    assert own.encode("a", bos=True)[:-1] == ([411] if pre == "llama-bpe" else [])


def reference_tokenizer(pre: str):
    """The tokenizer that transformers makes of the same tokens and merges."""
    from transformers import GPT2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX, Qwen2Tokenizer

    tokens, merges = tiny_gguf.vocabulary()
    ids = {token: id for id, token in enumerate(tokens)}
    kind = Qwen2Tokenizer if pre == "qwen2" else GPT2Tokenizer
    found = kind(vocab=ids, merges=[tuple(one.split()) for one in merges])._tokenizer
    found.add_special_tokens(list(tiny_gguf.SPECIAL))
    found.add_tokens([tiny_gguf.ADDED])
    words = {
        "llama-bpe": PRETOKENIZE_REGEX.replace(r"\p{N}|", r"\p{N}{1,3}|"),
        "smollm": None,
    }
    if pre == "llama-bpe":
        split = pre_tokenizers.Split(Regex(words[pre]), "isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        found.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return found


def test_the_files_template_asks_without_thinking_unless_told_to(file, tmp_path):
    vocabulary.write(gguf_file.read(file), tmp_path)
    template = chat_template(tmp_path)
    assert template.parts([Message("user", "Hi")])[-1].endswith("assistant\n<think>")
    thinking = replace(template, thinking=True)
    assert thinking.parts([Message("user", "Hi")])[-1].endswith("assistant\n")
    ids, limit = ir.read_config(tmp_path)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert ids == {tokenizer.token_id(one) for one in ("<|im_end|>", "<|endoftext|>")}
    assert limit == 256


# Bad files


def changed(file: Path, out: Path, **fields: tuple) -> Path:
    tiny_gguf.write(out, tiny_gguf.torch_model("llama"), "llama", Type.Q8_0, **fields)
    return out


@pytest.mark.parametrize("kept", [0, 3, 20, 30, 5000, 150_000])
def test_a_file_that_was_cut_is_one_sentence_and_leaves_nothing(file, tmp_path, kept):
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:kept])
    with pytest.raises(BadInput, match=r"damaged or truncated|not a GGUF file"):
        export(tmp_path / "cut.gguf", tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.gguf"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"llama", b"mamba", "architecture 'mamba'; GGUF files of llama, qwen2, qwen3 can be run"),
        (b"GGUF\x03", b"GGUF\x07", "of version 7"),
        (b"output_norm", b"output_nurm", "output_norm.weight should be .128., and there is none"),
        (b"llama.block_count", b"llama.block_kount", "block_count is 0, not a positive number"),
        (b"tokenizer.ggml.merges", b"tokenizer.ggml.merged", "damaged vocabulary"),
        (b"qwen2", b"qwenX", "a vocabulary of the kind 'gpt2', 'qwenX'"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_named_in_one_sentence(file, tmp_path, old, new, said):
    (tmp_path / "bad.gguf").write_bytes(file.read_bytes().replace(old, new))
    with pytest.raises((BadInput, FetchError), match=said):
        export(tmp_path / "bad.gguf", tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_a_tensor_of_an_unknown_type_or_a_wrong_shape_is_refused(file, tmp_path):
    data, name = file.read_bytes(), b"blk.0.attn_v.weight"
    at = data.index(name) + len(name) + 4
    for change, said in (
        (struct.pack("<QQI", 128, 64, 99), "unknown type 99"),
        (struct.pack("<QQ", 64, 128), r"attn_v.weight should be \[64, 128\]"),
        (struct.pack("<QQ", 127, 64), "damaged or truncated"),
        (struct.pack("<QQ", 2**40, 2**40), "damaged or truncated"),
    ):
        (tmp_path / "bad.gguf").write_bytes(data[:at] + change + data[at + len(change) :])
        with pytest.raises((BadInput, FetchError), match=said):
            export(tmp_path / "bad.gguf", tmp_path / "out", "int8")


def test_a_header_of_200_gigabytes_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "huge.gguf"
    with open(path, "wb") as output:
        output.write(b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 150 << 30))
        output.truncate(200 << 30)
    with pytest.raises(BadInput, match="damaged or truncated"):
        gguf_file.read(path)


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(file, tmp_path, monkeypatch):
    path = tmp_path / "own.gguf"
    path.write_bytes(file.read_bytes())
    read = weights.Tensor.read
    count = itertools.count()

    def replacing(*given):
        if next(count) == 5:
            os.utime(path, (1, 1))
        return read(*given)

    monkeypatch.setattr(weights.Tensor, "read", replacing)
    with pytest.raises(FetchError, match="was replaced while it was read"):
        export(path, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_tensors_that_the_architecture_does_not_have_are_refused(tmp_path):
    tiny_gguf.write(tmp_path / "extra.gguf", tiny_gguf.torch_model("qwen3"), "qwen3")
    data = (tmp_path / "extra.gguf").read_bytes().replace(b"qwen3", b"llama")
    (tmp_path / "extra.gguf").write_bytes(data)
    with pytest.raises(BadInput, match="attn_k_norm.weight, which llama has not|attn_q_norm"):
        export(tmp_path / "extra.gguf", tmp_path / "out", "int8")


# Names


def test_a_gguf_file_is_named_by_its_path_or_by_repository_and_kind(file, monkeypatch):
    own = sources.source_of(str(file), "--model", "int8")
    assert (own.repo, own.name) == (str(file), "tiny-Q8_0")
    found = sources.source_of("Qwen/Some-GGUF:Q4_K_M", "--model", "int4")
    assert found.name == "Qwen/Some-GGUF:Q4_K_M"
    names = ["a-q4_k_m.gguf", "a-q8_0-00001-of-00002.gguf", "a-q8_0-00002-of-00002.gguf", "x.json"]
    assert hub._choose(names, "o/n:Q4_K_M") == ["a-q4_k_m.gguf"]
    assert hub._choose(names, "o/n:q8_0") == names[1:3]
    assert hub._choose(names, "o/n:a-q8_0-00002-of-00002.gguf") == names[1:3]
    with pytest.raises(BadInput, match="Hub: a-q4_k_m, a-q8_0"):
        hub._choose(names, "o/n:Q5_K_M")
    with pytest.raises(BadInput, match="o/n:FILE.gguf"):
        hub._choose(names, "o/n")
