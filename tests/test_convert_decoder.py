"""Checkpoints become IR without torch: the same logits as torch's and as optimum-intel's export,
whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from specdemo.convert import checkpoints, exporting, ir
from specdemo.engine.messages import ModelSettings, Run
from specdemo.engine.model import PagedModel
from specdemo.errors import BadInput, FetchError

IDS = np.array([[5, 17, 900, 3, 3, 42, 511, 7, 260, 31, 8, 77]], np.int64)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
EXACT |= {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
CONFIG = Path("config.json")
TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"intermediate_size": 256, "vocab_size": 1000, "max_position_embeddings": 256}


@pytest.fixture(autouse=True)
def no_torch(monkeypatch) -> None:
    """For `export`; these tests themselves use it."""
    monkeypatch.setattr(exporting, "_NEEDED", ("no_such_package",))


def checkpoint(folder: Path, *, dtype="float32", shard: str = "1GB", **own):
    """A made-up model of torch's and where it was saved; its weights are exact in 16 bits."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(**{**TINY, "initializer_range": 0.1, **own})
    model = transformers.GPTNeoXForCausalLM(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.05 * torch.randn_like(weights))  # biases too
            weights.copy_(weights.to(getattr(torch, dtype if dtype != "float32" else "float16")))
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    return transformers.GPTNeoXForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(xml: Path, *chunks: np.ndarray) -> np.ndarray:
    """The logits of a stateful model that is given `chunks` one after the other."""
    request = ov.Core().compile_model(xml, "CPU", EXACT).create_infer_request()
    rows, length = [], 0
    for ids in chunks:
        length += ids.shape[1]
        positions = np.arange(length - ids.shape[1], length)[None]
        mask = np.ones((1, length), np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        names = {name for port in request.model_inputs for name in port.names}
        inputs |= {"beam_idx": np.zeros(1, np.int32)}
        result = request.infer({name: inputs[name] for name in names & set(inputs)})
        rows.append(result["logits"][0].copy())
    return np.concatenate(rows)


def exported(source: Path, weight_format: str = "fp16") -> Path:
    out = source.with_name(f"{source.name}-{weight_format}")
    exporting.export(source, out, weight_format)
    return out / ir.MODEL


@pytest.mark.parametrize(
    "own",
    [
        {"rotary_pct": 0.2},
        {"rotary_pct": 0.5, "use_parallel_residual": False, "dtype": "float16"},
        {"rotary_emb_base": 500, "rotary_pct": 1.0, "tie_word_embeddings": True},
        {"hidden_act": "gelu_fast", "attention_bias": False, "layer_norm_eps": 0.1},
        {"dtype": "bfloat16", "shard": "300KB"},
    ],
    ids=str,
)
def test_logits_are_those_of_torch(tmp_path, own):
    import torch

    model = checkpoint(tmp_path / "model", **own)
    with torch.no_grad():
        expected = model(torch.from_numpy(IDS)).logits[0].numpy()
    xml = exported(tmp_path / "model")
    paged = PagedModel(xml, ModelSettings("CPU", tuple(EXACT.items())))
    with paged.new_sequence() as sequence:
        [logits] = paged.forward([Run(sequence, IDS[0].tolist(), IDS.shape[1])])
        results = [logits.rows, logits_of(xml, IDS)]
    results.append(logits_of(xml, IDS[:, :5], IDS[:, 5:6], IDS[:, 6:]))
    for rows in results:
        assert abs(rows - expected).max() < 1e-4


def test_int8_logits_are_those_of_optimum_intels_export(tiny_home, tmp_path):
    (tmp_path / "dolly").symlink_to(tiny_home / "dolly")
    own = logits_of(exported(tmp_path / "dolly", "int8"), IDS)
    theirs = logits_of(tiny_home / "dolly-int8" / ir.MODEL, IDS)
    assert theirs.std() > 0.5
    assert abs(own - theirs).max() < 1e-3


def test_int4_weights_are_those_that_nncf_chooses(tmp_path):
    import nncf

    def packed(model: ov.Model) -> list[bytes]:
        """The matrices of 4 bits."""
        return [
            node.get_tensor_view().data.tobytes()
            for node in model.get_ordered_ops()
            if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.i4
        ]

    checkpoint(tmp_path / "model")
    *own, output = packed(ov.Core().read_model(exported(tmp_path / "model", "int4")))
    model = ov.Core().read_model(exported(tmp_path / "model", "fp16"))
    theirs = nncf.compress_weights(
        model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=128, ratio=1.0
    )
    alike = [
        np.mean(np.frombuffer(ours, np.uint8) == np.frombuffer(other, np.uint8))
        for ours, other in zip(own, packed(theirs), strict=True)
    ]
    # Here weights are divided by the 16-bit scale that is stored; nncf divides by the 32-bit one.
    assert min(alike) > 0.98 and len(own) == 12 and len(output) == 1000 * 128 // 2


@pytest.fixture
def saved(tmp_path) -> Path:
    checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("size", [0, 300, 100_000])
def test_a_file_that_was_cut_is_one_sentence_and_leaves_nothing(saved, tmp_path, size):
    os.truncate(saved / "model.safetensors", size)
    with pytest.raises(FetchError, match="damaged or truncated"):
        exporting.export(saved, tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_that_does_not_go_with_its_configuration_is_refused(saved, tmp_path):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "vocab_size": 999}))
    with pytest.raises(FetchError, match=r"should be \[999, 128\], and it is \[1000"):
        exporting.export(saved, tmp_path / "out", "int8")


def test_a_pickle_is_no_checkpoint(saved, tmp_path):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(BadInput, match="safetensors"):
        exporting.export(saved, tmp_path / "out", "int8")


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "phi3"},
        {"hidden_act": "relu"},
        {"rope_scaling": {"type": "yarn", "factor": 2}},
    ],
    ids=str,
)
def test_other_models_are_left_to_optimum_intel(change):
    config = {**TINY, "model_type": "gpt_neox"}
    assert checkpoints.shape_of(config, CONFIG)
    assert checkpoints.shape_of({**config, **change}, CONFIG) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_attention_heads": 0},
            "num_attention_heads is 0; it must be greater than or equal to",
        ),
        ({"hidden_size": "8"}, "hidden_size is '8'; it must be a valid integer"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000; it must be less than or"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"rope_scaling": "x"}, "rope_scaling is 'x'; it must be a valid dictionary"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"num_attention_heads": 256}, "256 heads of 0 values"),
        ({"num_key_value_heads": 3}, "4 heads of 32 values, .* and 3 heads of keys do not go"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_named_with_what_would_be_accepted(change, words):
    with pytest.raises(BadInput, match=f"^config.json cannot be used: {words}"):
        checkpoints.shape_of({**TINY, "model_type": "llama", **change}, CONFIG)
    if "num_attention_heads" in change:  # where it is not used it is not read
        assert checkpoints.shape_of({**TINY, "model_type": ["llama"], **change}, CONFIG) is None


def test_a_sliding_window_is_left_to_optimum_intel_where_it_is_used():
    config = {**TINY, "model_type": "mistral"}
    assert checkpoints.shape_of({**config, "sliding_window": None}, CONFIG)
    assert checkpoints.shape_of({**config, "sliding_window": 4096}, CONFIG) is None
    qwen = {**config, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}
    assert checkpoints.shape_of(qwen, CONFIG)
