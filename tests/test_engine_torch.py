"""Checkpoints on torch devices: the same cache rules and answers as over OpenVINO, and refusals."""

import dataclasses
import json
import subprocess
import sys
from functools import partial

import numpy as np
import openvino as ov
import pytest
from conftest import ROOT, load_own
from tiny_models import _save_pair, ir_folder, write_byte_tokenizer

from specdemo.audit.engines import audited, peers_of
from specdemo.cli import main
from specdemo.convert import model_files
from specdemo.engine.backends import numerics
from specdemo.engine.backends.paged import open_model
from specdemo.engine.faults import BadInput, ModelError
from specdemo.engine.forwards import ModelSettings, Run
from specdemo.engine.pair_files import Checkpoint, PairFiles
from specdemo.machine import hardware
from specdemo.runs.question import Question
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

pytestmark = pytest.mark.slow

CPU = ModelSettings("torch:cpu", (("dtype", "float32"),))
PADDED = ModelSettings("torch:cpu", (("dtype", "float32"), ("padding", "1,2,4,8")))
CORE = ov.Core()
TOLERANCE = 2e-3
KINDS = ("Llama", "GPTNeoX", "GPT2")
loaded = partial(load_own, device="torch:cpu", draft_device="torch:cpu")
QUESTION = "Name three colours, and three more."


def sizes_of(kind: str) -> dict:
    shared = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "GPT2":
        return shared | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
    shared |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    shared |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    return shared | {"max_position_embeddings": 1024}


def saved(folder, kind: str, **more: object) -> Checkpoint:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes_of(kind), **more)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return Checkpoint(folder)


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """Folders of a target and a draft that is right now and then."""
    home = tmp_path_factory.mktemp(request.param)
    configs = [sizes_of(request.param)] * 2
    _save_pair(request.param, configs, home / "target", home / "draft", sharpness=6.0, noise=0.2)
    write_byte_tokenizer(home / "target")
    write_byte_tokenizer(home / "draft")
    return home / "target", home / "draft"


def accepted(trace) -> int:
    return sum(token.accepted for round_ in trace.rounds for token in round_.drafted)


@pytest.fixture(scope="module")
def session(pair):
    with Session(loaded(*pair)) as session:
        yield session


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_gives_the_tokens_of_the_baseline(session, temperature):
    asked = Settings(max_new_tokens=24, temperature=temperature, seed=3)
    for drafter, length in (("lookup", None), ("auto", None), ("model", 3)):
        asked = dataclasses.replace(asked, drafter=drafter, draft_tokens=length)
        *_, trace = session.ask(Question(QUESTION, asked, baseline=True))
        assert trace.identical, trace.difference
    assert accepted(trace)
    assert "exact on torch:cpu" in trace.pair.numerics_found


def expected_logits(folder, text: list[int]) -> np.ndarray:
    """What transformers computes for a text, float32 [tokens, vocabulary]."""
    import torch
    import transformers

    module = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        return module(torch.tensor([text])).logits[0].numpy()


@pytest.mark.parametrize("settings", [CPU, PADDED], ids=["as asked", "padded"])
@pytest.mark.parametrize("kind", [*KINDS, "Gemma2"])
def test_logits_are_those_of_one_forward_whatever_was_forgotten(tmp_path, kind, settings):
    window = {"sliding_window": 8} if kind == "Gemma2" else {}  # masked, so it rolls back too
    model = open_model(saved(tmp_path, kind, initializer_range=0.3, **window), settings, CORE)
    text = np.random.default_rng(3).integers(0, 256, 50).tolist()
    expected = expected_logits(tmp_path, [*text, 1])
    assert np.ptp(expected, axis=-1).min() > 1000 * TOLERANCE
    with model.new_sequence() as sequence:
        for begin, end in ((0, 40), (40, 43), (43, 44), (44, 50)):
            model.forward([Run(sequence, [7] * 20, 1)])
            sequence.truncate(begin)
            rows = model.forward([Run(sequence, text[begin:end], 1)])[0]
            assert np.abs(rows.rows - expected[end - 1]).max() < TOLERANCE
        with model.fork(sequence, 43) as fork:
            rows = model.forward([Run(fork, text[43:45], 2)])[0].rows
            assert np.abs(rows - expected[43:45]).max() < TOLERANCE
            rows = model.forward([Run(sequence, [1], 1)])[0].rows  # the fork wrote elsewhere
        assert np.abs(rows[0] - expected[50]).max() < TOLERANCE


def test_padding_may_pass_the_last_learned_position(tmp_path):
    model = open_model(saved(tmp_path, "GPT2"), PADDED, CORE)
    with model.new_sequence() as sequence:
        model.forward([Run(sequence, [1] * 1019, 0)])
        assert np.isfinite(model.forward([Run(sequence, [2] * 5, 5)])[0].rows).all()


def test_a_recurrent_state_is_refused(tmp_path):
    saved(tmp_path, "Lfm2", layer_types=["conv", "full_attention"])
    with pytest.raises(BadInput, match="rolled back"):
        open_model(Checkpoint(tmp_path), CPU, CORE)


REMOTE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OddConfig(LlamaConfig):
    model_type = "odd-llama"
class OddForCausalLM(LlamaForCausalLM):
    config_class = OddConfig
"""


def test_code_of_a_model_runs_only_where_the_operator_allows_it(tmp_path, monkeypatch):
    saved(tmp_path, "Llama")
    (tmp_path / "odd.py").write_text(REMOTE)
    config = json.loads((tmp_path / "config.json").read_text())
    names = {"AutoConfig": "odd.OddConfig", "AutoModelForCausalLM": "odd.OddForCausalLM"}
    config |= {"model_type": "odd-llama", "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "py"))
    monkeypatch.delenv("SPECDEMO_TRUST_REMOTE_CODE", raising=False)
    with pytest.raises(ModelError, match="trust_remote_code"):
        open_model(loaded(tmp_path).target, CPU, CORE)
    monkeypatch.setenv("SPECDEMO_TRUST_REMOTE_CODE", "1")
    assert open_model(loaded(tmp_path).target, CPU, CORE).vocabulary_size == 256


def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path):
    saved(tmp_path, "Llama")
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match="cannot be loaded on torch:cpu"):
        open_model(Checkpoint(tmp_path), CPU, CORE)


def test_short_forwards_round_alike(tmp_path):
    files = PairFiles(saved(tmp_path, "Llama"), device="torch:cpu")
    model, found = numerics.open_target(files, CORE)
    assert found.tokens >= 8
    assert dict(model.settings.properties) == {"dtype": "float32", "padding": "8"}
    assert model.min_tokens == found.min_tokens


@pytest.mark.parametrize("device", ["torch:cpu", "CPU"])
def test_torch_and_openvino_draft_for_each_other(tiny_home, device):
    others = {"torch:cpu": "CPU", "CPU": "torch:cpu"}
    folders = [
        tiny_home / name if on == "torch:cpu" else ir_folder(tiny_home, name, "int8")
        for name, on in (("llama-target", device), ("llama-draft", others[device]))
    ]
    asked = Settings(max_new_tokens=24, draft_tokens=3, drafter="model")
    with Session(loaded(*folders, device=device, draft_device=others[device])) as session:
        *_, trace = session.ask(Question(QUESTION, asked, baseline=True))
    assert trace.identical and accepted(trace)


def test_a_gguf_file_runs_dequantized(tiny_home, tmp_path, monkeypatch):
    """As the embedded target's does."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    target, rows = loaded(tiny_home / "embedded" / "tiny.gguf").target, []
    for weights, settings in (
        (target, CPU),
        (target.path.with_name(model_files.MODEL), ModelSettings()),
    ):
        model = open_model(weights, settings, CORE)
        with model.new_sequence() as sequence:
            rows.append(model.forward([Run(sequence, list(range(5, 25)), 1)])[0].rows[0].copy())
    assert np.abs(rows[0] - rows[1]).max() < 0.05 * np.ptp(rows[0])


def test_gguf_files_of_ir_are_a_peers_target_and_draft(tiny_home, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    found = loaded(*[tiny_home / "embedded" / "tiny.gguf"] * 2, device="CPU", draft_device="CPU")
    *_, drafted = peers_of("transformers", found, {"dtype": "float32"})
    [(tokens, _)] = drafted.answers([(QUESTION,)], Settings(max_new_tokens=4))
    assert drafted.title == "transformers/speculative" and len(tokens) == 4


def test_ir_and_a_kv_cache_precision_are_refused_on_torch(tiny_home):
    folder = ir_folder(tiny_home, "llama-target", "int8")
    with pytest.raises(BadInput, match="PyTorch checkpoint"):
        loaded(folder)
    with pytest.raises(BadInput, match="kv_cache f16"):
        loaded(folder, kv_cache="f16")


@pytest.mark.parametrize(
    ("device", "missing", "code", "said"),
    [
        ("torch:tpu", "", 2, "'torch:tpu' is not a device; choose CPU or one of torch:cpu"),
        ("torch:cuda:7", "", 2, "--device torch:cuda:7: torch"),
        ("torch:hpu", "habana_frameworks", 1, "pip install optimum-habana"),
        ("torch:cpu", "torch", 1, "pip install 'specdemo[torch]'`"),
    ],
)
def test_a_device_that_is_not_there_is_refused(capsys, monkeypatch, device, missing, code, said):
    monkeypatch.setattr(hardware, "find_spec", lambda package: package != missing or None)
    assert main(["run", "hello", "--pair", "embedded", "--device", device]) == code
    assert said in capsys.readouterr().err


def test_torch_is_not_imported_unless_a_torch_device_is_asked_for(tiny_home):
    folder = ir_folder(tiny_home, "llama-target", "int8")
    program = (
        "import sys, app, specdemo.commands.bench, specdemo.server.openai_api;"
        "import specdemo.server.page.layout;"
        "from specdemo.cli import main;"
        f"assert main(['run', 'hello', '--model', {str(folder)!r}, '--max-new-tokens', '2']) == 0;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_transformers_generation_is_a_peer_on_the_same_weights(tiny_home):
    found = loaded(tiny_home / "llama-target", tiny_home / "llama-draft")
    asked = Settings(max_new_tokens=16)
    peers = list(peers_of("transformers", found, {"dtype": "float32"}))
    with Session(found) as session:
        *_, trace = session.ask(Question(QUESTION, asked))
    names = [f"transformers/{mode}" for mode in ("autoregressive", "prompt-lookup", "speculative")]
    assert sorted({peer.title for peer in peers}) == names
    for peer in peers:
        [(tokens, seconds)] = peer.answers([(QUESTION,)], asked)
        assert tokens == trace.token_ids and seconds > 0, peer.title
    sampling = dataclasses.replace(asked, temperature=1.0, top_k=4)
    [(sampled, _)] = peers[0].answers([(QUESTION,)], sampling)
    assert len(sampled) == 16
    methods = [engine.method for engine in audited(peers, 3)]
    assert methods == ["prompt-lookup", "speculative"]


def test_a_peer_that_cannot_run_a_pair_says_so(tiny_home, tiny_llama_pair, capsys):
    with pytest.raises(BadInput, match="--peers transformers runs checkpoints"):
        list(peers_of("transformers", tiny_llama_pair, {}))
    target = Checkpoint(tiny_home / "llama-target")
    mixed = dataclasses.replace(tiny_llama_pair, target=target, device="torch:cpu")
    with pytest.raises(BadInput, match="--peers openvino-genai runs IR"):
        list(peers_of("openvino-genai", mixed, {}))
    list(peers_of("transformers", mixed, {"dtype": "float32"}))
    assert "transformers/speculative was left out" in capsys.readouterr().err
