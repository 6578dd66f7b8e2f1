"""A target's own prediction layer (tensors `mtp.*` of Qwen3.5) as a draft head: its IR
against the modules of transformers, and drafting for a target with recurrent layers."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import recurrent_models
import torch
from conftest import load_own
from reference_heads import ReferenceHead
from safetensors.torch import load_file, save_file
from test_convert_eagle3 import require_rows
from transformers.models.qwen3_5 import configuration_qwen3_5, modeling_qwen3_5

from specdemo import cli
from specdemo.convert import model_files
from specdemo.convert.exporting import export
from specdemo.engine.backends.numerics import open_target
from specdemo.engine.backends.paged import PagedModel
from specdemo.engine.forwards import Run, Taps
from specdemo.errors import BadInput, FetchError
from specdemo.runs.question import Question, trace_of
from specdemo.runs.session import Session
from specdemo.runs.settings import Settings

ROPE = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.25}
TEXT = recurrent_models.CONFIGS["qwen3_5_text"] | {"rope_parameters": ROPE, "rms_norm_eps": 1e-6}
VOCABULARY, HIDDEN, LAYERS = (
    TEXT[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")
)
MATRICES = {"embedding": "model.embed_tokens.weight", "output": "lm_head.weight"}
STATES = ["after", "before"]
PROMPT = "Two and two"
SETTINGS = Settings(max_new_tokens=30, drafter="model", draft_tokens=3, ignore_eos=True)


class Reference(ReferenceHead):
    """The layer, which reads the `state` "after" or "before" the target's last norm. `share`: of
    what attention and feed-forward part add."""

    tokens = np.arange(VOCABULARY)

    def __init__(self, state: str = "after", share: float = 1.0):
        super().__init__()
        self.state = state
        own = {"layer_types": ["full_attention"], "num_hidden_layers": 1}
        config = configuration_qwen3_5.Qwen3_5TextConfig(**TEXT | own)
        config._attn_implementation = "eager"
        self.fc = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.layers = torch.nn.ModuleList([modeling_qwen3_5.Qwen3_5DecoderLayer(config, 0)])
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            setattr(self, name, modeling_qwen3_5.Qwen3_5RMSNorm(HIDDEN, 1e-6))
        self.rotary = modeling_qwen3_5.Qwen3_5TextRotaryEmbedding(config)
        self.matrices = {
            part: torch.from_numpy(recurrent_models.values(name, (VOCABULARY, HIDDEN))).half()
            for part, name in MATRICES.items()
        }
        with torch.no_grad():
            for name, value in self.named_parameters():
                made = recurrent_models.values(f"mtp.{name}", tuple(value.shape))
                scale = share if "o_proj" in name or "down_proj" in name else 1
                value.copy_(torch.from_numpy(scale * made).half())
        self.embedding = self.matrices["embedding"].float()

    def inputs(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)], 1)

    @torch.no_grad()
    def fit(self, states: np.ndarray, tokens: list[int]) -> None:
        """Let the layer's product give each of the `states` before the last norm [n, H] of those
        before it, where the other parts of the layer add nothing."""
        read = torch.from_numpy(states)
        x, y = self.inputs(read[:-1], self.embedding[tokens[1:]]), read[1:]
        self.fc.weight.copy_(torch.linalg.lstsq(x, y, driver="gelsd").solution.T.half())
        weight = recurrent_models.values("model.norm.weight", (HIDDEN,))
        self.norm.weight.copy_(torch.from_numpy(weight).half())

    def rows(
        self, states: torch.Tensor, embedded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.fc(self.inputs(states, embedded))[None]
        raw = self.layers[0](x, **self.context(len(states)))[0]
        out = self.norm(raw)
        return out @ self.matrices["output"].float().T, out if self.state == "after" else raw


def written(folder: Path, reference: Reference, **own) -> Path:
    """A checkpoint of the text part of a model that sees images, with the prediction layer."""
    tensors = {f"mtp.{name}": value.half() for name, value in reference.state_dict().items()}
    for part, name in MATRICES.items():
        tensors[name.replace("model.", "model.language_model.")] = reference.matrices[part]
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    text = {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, **TEXT, **own}
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text}))
    return folder


def exported(source: Path, state: str = "after", weight_format: str = "fp16") -> Path:
    out = source.with_name(f"{source.name}-{state}")
    arguments = [str(source), str(out), "--weight-format", weight_format]
    assert cli.main(["export", *arguments, "--prediction-layer", state]) == 0
    return out


@pytest.mark.parametrize("state", STATES)
def test_logits_and_the_next_state_are_those_of_the_modules_of_transformers(tmp_path, state):
    reference = Reference(state)
    folder = exported(written(tmp_path / "checkpoint", reference), state)
    require_rows(reference, folder / model_files.MODEL, HIDDEN)


@pytest.fixture(scope="module")
def target(tiny_home, tmp_path_factory) -> Path:
    """The folder of a target with recurrent layers."""
    folder = tmp_path_factory.mktemp("prediction") / "target"
    recurrent_models.write_int8("qwen3_5_text", folder)
    for path in (tiny_home / "llama-target").glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def opened(target: Path, state: str) -> PagedModel:
    """The target with the numerics of a session, which rounds activations where there is VNNI."""
    model, _ = open_target(load_own(target), ov.Core())
    settings = dataclasses.replace(model.settings, hidden=Taps((LAYERS + (state == "after"),)))
    return PagedModel(target / model_files.MODEL, settings)


def states_of(model: PagedModel, text: list[int]) -> np.ndarray:
    with model.new_sequence() as sequence:
        return model.forward([Run(sequence, text, 1)])[0].state.copy()


def test_every_draft_along_an_answer_is_the_references(target, tmp_path):
    reference = Reference()
    pair = load_own(target, exported(written(tmp_path / "checkpoint", reference)))
    assert pair.head_layers == (LAYERS + 1,) and pair.draft is None
    with Session(pair, background=False) as session:
        trace = trace_of(session.ask(Question(PROMPT, SETTINGS)))
    right, total = reference.right(trace, pair, partial(states_of, opened(target, "after")))
    assert total > 20 and right == total


def test_the_state_after_the_last_norm_is_that_before_it_normalized(target):
    before, after = (states_of(opened(target, state), [5, 17, 3, 3, 42]) for state in STATES[::-1])
    normalized = before / np.sqrt(np.square(before).mean(-1, keepdims=True) + 1e-6)
    weight = 1 + recurrent_models.values("model.norm.weight", (HIDDEN,))
    assert abs(after - normalized * weight).max() < 1e-4


def test_answers_are_those_of_the_baseline_and_a_fitted_layers_drafts_are_accepted(
    target, tmp_path
):
    """Its product is fitted to the states of a greedy answer, each to the one after it."""
    pair, reference = load_own(target), Reference("before", 0.1)
    settings = dataclasses.replace(SETTINGS, max_new_tokens=49, drafter="none")
    with Session(pair, background=False) as session:
        trace = trace_of(session.ask(Question(PROMPT, settings)))
    text = [*pair.tokenizer.encode(PROMPT), *trace.token_ids]
    reference.fit(states_of(opened(target, "before"), text), text)
    pair = load_own(target, exported(written(tmp_path / "checkpoint", reference), "before"))
    with Session(pair, background=False) as session:
        for temperature in (0.0, 0.9):
            settings = dataclasses.replace(SETTINGS, temperature=temperature, seed=5)
            trace = trace_of(session.ask(Question(PROMPT, settings, baseline=True)))
            drafted = [token for round_ in trace.rounds for token in round_.drafted]
            accepted = sum(token.accepted for token in drafted)
            assert trace.identical and {token.source for token in drafted} == {"mtp"}
            assert temperature or accepted > len(drafted) / 2


@pytest.mark.parametrize(
    ("own", "change", "message"),
    [
        ({"model_type": "qwen3_5_moe_text"}, {}, "model_type is 'qwen3_5_moe_text'; it must be"),
        ({"mtp_num_hidden_layers": 2}, {}, "mtp_num_hidden_layers is 2; it must be 1"),
        ({"mtp_use_dedicated_embeddings": True}, {}, "mtp_use_dedicated_embeddings is true"),
        ({"num_attention_heads": 8}, {}, "queries of mtp should have 512 rows, .* have 256"),
        ({}, {"mtp.layers.1.mlp.up_proj.weight": 64}, "which Qwen3.5's prediction layer has not"),
        ({}, {"mtp.fc.weight": None}, "fc.weight should be .* there is none"),
        ({}, {"mtp.layers.0.self_attn.q_proj.weight": None}, "no tensors named mtp"),
    ],
    ids=str,
)
def test_a_checkpoint_without_such_a_layer_is_one_sentence(tmp_path, own, change, message):
    source = written(tmp_path / "checkpoint", Reference(), **own)
    tensors = load_file(source / "model.safetensors")
    for name, size in change.items():
        tensors.pop(name, None)
        if size:
            tensors[name] = torch.zeros(size, size)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises((BadInput, FetchError), match=message):
        export(source, tmp_path / "out", "fp16", prediction="after")
    assert not (tmp_path / "out").exists()
