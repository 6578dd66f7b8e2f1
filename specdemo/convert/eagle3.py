"""EAGLE-3 heads, and prediction layers of Qwen3.5, as OpenVINO IR.

A published EAGLE-3 head (arXiv 2503.01840) is one decoder layer that reads states of a target, and
an output matrix for its frequent tokens. Row i reads the target's states of token i and the
embedding of token i + 1, and gives the logits of token i + 2. With e the embedding, h the states,
and every norm an RMSNorm with weights:

    g = fc(h)                      norm_before_fc: fc(norm(h));  fc_norm: each state by itself
    x = [norm(e), norm(g)]
    y = g + attention(x)           norm_before_residual: norm(g) + attention(x)
    z = y + feed_forward(norm(y))
    logits = lm_head(norm(z))

In a chain, z replaces g (norm_output: norm(z)). The IR has the inputs, state and outputs of
optimum-intel's export (`logits`, `d2t`), and z as the output `state`.

A prediction layer (tensors `mtp.*` of a checkpoint) reads one state in the target's width, without
g: a decoder layer of the target's kind, whose heads have gates, computes z of
fc([norm(e), norm(h)]). The output matrix is the target's. h is the state after the target's last
norm (norm_output), which more drafts of real weights survive (llama.cpp's pull request 24025,
LightLLM's 1402), or the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import gguf
import numpy as np
import openvino as ov
from gguf import GGMLQuantizationType
from openvino import opset13 as ops
from pydantic import Field, model_validator

from specdemo.convert import checkpoints, configuration, model_files
from specdemo.convert.checkpoints import CheckpointConfig
from specdemo.convert.configuration import Configuration, named, unusable
from specdemo.convert.decoder import FAMILIES, DecoderGraph, Rotary, Shape, Size, sized, with_biases
from specdemo.convert.weights import FileWeights, Tensor
from specdemo.engine.backends import graph
from specdemo.engine.backends.eagle_head import read_head
from specdemo.engine.backends.graph import named_input, named_result
from specdemo.errors import BadInput, FetchError

PREDICTION = "Qwen3_5MTP"  # the architecture of a model's own prediction layer


class EagleLayer(CheckpointConfig):
    """The decoder layer of an EAGLE-3 head. Where only one value is listed, no other can be run."""

    model_type: Literal["llama", "qwen3"]
    layers: Literal[1] = named("num_hidden_layers", default=1)
    activation: Literal["silu"] = named("hidden_act", default="silu")
    layer_types: list[Literal["full_attention"]] = []  # type: ignore[assignment]


class EagleConfig(Configuration):
    """config.json of an EAGLE-3 head, beside the sizes of its layer. Where only one value is
    listed, no other can be run."""

    architectures: list[
        Literal[
            "Qwen3_5MTP",
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
        ]
    ]
    eagle_config: dict[str, Any] = {}
    transformer_layer_config: dict[str, Any] = {}
    draft_vocabulary: Size = sized(1 << 22, "draft_vocab_size", default=0)
    target_hidden: Size = sized(1 << 18, "target_hidden_size", default=0)
    layers: list[Annotated[int, Field(ge=0, le=512)]] = named(
        "eagle_aux_hidden_state_layer_ids", default=[], max_length=16
    )  # of the target: the head reads their inputs
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    use_aux_hidden_state: Literal[True] = True
    use_input_layernorm_in_first_layer: Literal[True] = True
    use_last_layernorm: Literal[True] = True
    use_mtp_layernorm: Literal[False] = False
    parallel_drafting: Literal[False] = False

    @model_validator(mode="after")
    def _has_one_norm_before_fc(self) -> Self:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other")
        return self

    @property
    def predicts(self) -> bool:
        """Whether it is a model's own prediction layer."""
        return self.architectures == [PREDICTION]


class PredictionConfig(Configuration):
    """config.json of a checkpoint's text part with a prediction layer. Where only one value is
    listed, no other can be run."""

    model_type: Literal["qwen3_5", "qwen3_5_text"]
    mtp_num_hidden_layers: Literal[1] = 1
    mtp_use_dedicated_embeddings: Literal[False] = False
    attn_output_gate: Literal[True] = True


@dataclass(frozen=True, slots=True)
class EagleShape(Shape):
    """Sizes of a head's layer."""

    config: EagleConfig = EagleConfig.model_validate({"architectures": ["Eagle3Speculator"]})
    embedding: bool = True  # without one the IR takes the target's as `inputs_embeds`
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)
    """The token ids of its logits, int64 [V']."""

    @property
    def states(self) -> int:
        """How many of the target's states are read, each of `target_hidden` values."""
        return 1 if self.config.predicts else len(self.config.layers) or 3

    @property
    def target_hidden(self) -> int:
        return self.config.target_hidden or self.hidden

    @property
    def graph(self) -> type[EagleGraph]:
        return EagleGraph

    def target_layers(self, count: int) -> tuple[int, ...]:
        """The layers of a target of `count` layers whose inputs the head reads, as in `Taps`."""
        ids = self.config.layers
        if self.config.predicts:
            return (count + self.config.norm_output,)
        if not ids:
            return 2, count // 2, count - 3
        # If the first id is 1, ids count layer outputs; otherwise inputs: of 36 layers, [1, 17, 32]
        # are [2, 18, 33]. SGLang tells them apart in the same way.
        return tuple(id + (ids[0] == 1) for id in ids)

    def bytes(self, bits: int, output_bits: int = 8) -> int:
        attention = (self.attention_heads + 2 * self.kv_heads) * self.width
        wider = attention + self.states * self.target_hidden
        if self.config.predicts:
            wider = self.attention_heads * self.width + 2 * self.hidden
        embedding = self.vocabulary * max(bits, 8) if self.embedding else 0
        further = (wider * bits + len(self.tokens) * max(bits, output_bits) + embedding) // 8
        return Shape.bytes(replace(self, vocabulary=0), bits) + self.hidden * further


def eagle_layers(folder: Path, name: str, target: Path, target_name: str) -> tuple[int, ...]:
    """The layers of the decoder `target` (IR) whose inputs the head `name`, with IR in `folder`,
    reads; the number of layers stands for the output of the last one. Raises BadInput if the head
    is damaged or was made for another target."""
    core, shape = ov.Core(), eagle_shape(folder)
    decoder = graph.read_ir(core, target)
    count = graph.layers_of(decoder)
    layers = shape.target_layers(count)
    width = graph.embedding_of(decoder).get_output_partial_shape(0)[2].get_length()
    vocabulary = decoder.outputs[0].partial_shape[-1].get_length()
    why, actual = "", 0
    if not all(0 <= layer <= count + shape.config.predicts for layer in layers):
        why, actual = f"reads the layers {', '.join(map(str, layers))} of its target", count
    elif shape.target_hidden != width:
        why, actual = f"was made for a target with {shape.target_hidden} values a state", width
    elif shape.vocabulary != vocabulary:
        wanted = f"{shape.vocabulary} tokens in the vocabulary"
        why, actual = f"was made for a target with {wanted}", vocabulary
    if why:
        made = f"{name} {why}, and {target_name} has {actual}"
        raise BadInput(f"{made}; choose a head that was made for it.")
    read = read_head(core, folder / model_files.MODEL, target)
    tokens, columns = read.tokens.tolist(), read.step.outputs[0].partial_shape[-1]
    one_each = columns == len(tokens) == len(set(tokens)) and set(tokens) <= set(range(vocabulary))
    if read.states != len(layers) * width or not one_each:
        raise BadInput(f"The IR of {name} does not go with its config.json; export it again.")
    return layers


def eagle_shape(folder: Path, data: dict[str, Any] | None = None) -> EagleShape:
    """The shape of a head with the configuration `data` (None: that in `folder`), without tokens.
    Raises BadInput, which names what cannot be run."""
    path = folder / "config.json"
    data = configuration.read_json(path) if data is None else data
    config = EagleConfig.of(data | EagleConfig.of(data, path).eagle_config, path)
    layer = config.transformer_layer_config or data
    EagleLayer.of(layer, path)
    layer = {**layer, "num_hidden_layers": 1, "use_sliding_window": False}
    shape = checkpoints.shape_of(layer, path)
    if shape is None:
        rope = layer.get("rope_parameters") or layer.get("rope_scaling")
        raise unusable(path, f"it scales its positions by {rope!r:.80}, which is not supported.")
    sizes = {size.name: getattr(shape, size.name) for size in fields(Shape)} | {"tied": False}
    if config.predicts:
        rope = checkpoints.Rope.of(layer | (layer.get("rope_parameters") or {}), path)
        sizes["rotary"] = rope.partial_rotary_factor or 0.25
    return EagleShape(**sizes, config=config, embedding=not config.predicts)


def prediction_config(source: Path, state: str) -> dict[str, Any]:
    """config.json of a head: the prediction layer of the checkpoint in `source`, which reads the
    `state` "after" or "before" the target's last norm. Raises BadInput if there is none."""
    path = source / "config.json"
    data = configuration.read_json(path)
    text = configuration.GenerationLimits.of(data, path).text_config or data
    PredictionConfig.of(text, path)
    own = {"architectures": [PREDICTION], "model_type": "qwen3", "num_hidden_layers": 1}
    return text | own | {"layer_types": ["full_attention"], "norm_output": state == "after"}


def read_prediction_layer(
    source: Path, config: dict[str, Any], name: str
) -> tuple[EagleShape, dict[str, Tensor]]:
    """As `read_eagle_head`, of the prediction layer of a checkpoint, with the `config` of
    `prediction_config`."""
    shape = eagle_shape(source, config)
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 1)
    tensors, matrices = {}, {}
    for key, tensor in checkpoints.tensors_of(source).items():
        if short := key.removeprefix("mtp.") if key.startswith("mtp.") else "":
            full = known.get_name(f"model.{short}", (".weight", ".bias")) or short
            norm = len(tensor.shape) == 1  # stored without the 1 that it is near
            tensors[full] = replace(tensor, added=1.0) if norm else tensor
        elif key.endswith(("lm_head.weight", "embed_tokens.weight")):
            matrices[key.split(".")[-2]] = tensor
    query = tensors.get("blk.0.attn_q.weight")
    rows = shape.attention_heads * shape.width
    if query is None or not matrices:
        raise BadInput(f"{name} lacks its prediction layer: it has no tensors named mtp.*.")
    if query.shape[0] != 2 * rows:
        raise FetchError(
            f"{query.path} does not go with its configuration: the queries of mtp should have "
            f"{2 * rows} rows, with their gates, and they have {query.shape[0]}."
        )
    pairs = np.arange(2 * rows).reshape(shape.attention_heads, 2, -1).swapaxes(0, 1)
    for part, order in zip(("q", "gate"), pairs.reshape(2, -1), strict=True):
        tensors[f"blk.0.attn_{part}.weight"] = query.rows(order)
    tensors["output.weight"] = matrices.get("lm_head") or matrices["embed_tokens"]
    family = replace(
        FAMILIES["llama"], name="Qwen3.5's prediction layer", head_norms="head", gated_heads=True
    )
    return replace(shape, family=family, tokens=np.arange(shape.vocabulary)), tensors


def read_eagle_head(source: Path, name: str) -> tuple[EagleShape, dict[str, Tensor]]:
    """The shape of the head in the folder `source`, and its tensors by the graph's names. Raises
    BadInput, FetchError."""
    shape = eagle_shape(source)
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 1)
    tensors = {}
    for key, tensor in checkpoints.tensors_of(source).items():
        short = key.removeprefix("model.").replace("midlayer.", "layers.0.")
        full = short if short.startswith("lm_head") else f"model.{short}"
        tensors[known.get_name(full, (".weight", ".bias")) or short] = tensor
    tokens = _head_tokens(name, shape, tensors.pop("d2t", None))
    tensors = {key: tensor for key, tensor in tensors.items() if tensor.type in checkpoints.FLOATS}
    norms: Literal["", "head"] = "head" if "blk.0.attn_q_norm.weight" in tensors else ""
    family = replace(FAMILIES["llama"], name="EAGLE-3", head_norms=norms)
    embedding = "token_embd.weight" in tensors
    if not embedding and shape.target_hidden != shape.hidden:
        raise BadInput(
            f"{name} has no embedding, and its width ({shape.hidden}) is not that of its target "
            f"({shape.target_hidden}), whose embedding it would use."
        )
    shape = replace(shape, family=with_biases(family, tensors), tokens=tokens, embedding=embedding)
    return shape, tensors


def _head_tokens(name: str, shape: EagleShape, d2t: Tensor | None) -> np.ndarray:
    rows = shape.config.draft_vocabulary or shape.vocabulary
    if d2t is None:
        if rows != shape.vocabulary:
            raise FetchError(f"{name} has no tensor d2t, which names the tokens of its logits.")
        return np.arange(rows)
    if d2t.type != GGMLQuantizationType.I64 or d2t.shape != (rows,):
        raise FetchError(
            f"The head's tensors do not go with its configuration: d2t should be {rows} integers "
            f"of 64 bits, and it is {list(d2t.shape)} of {d2t.type.name}."
        )
    tokens: np.ndarray = np.arange(rows) + np.fromfile(d2t.path, "<i8", rows, offset=d2t.begin)
    if tokens.min() < 0 or tokens.max() >= shape.vocabulary or len(set(tokens.tolist())) < rows:
        raise BadInput(
            f"{name} has a damaged tensor d2t: it does not name {rows} different tokens of a "
            f"vocabulary of {shape.vocabulary}; fetch it again."
        )
    return tokens


class EagleGraph(DecoderGraph):
    _shape: EagleShape

    def __init__(self, shape: EagleShape, bits: int, weights: FileWeights) -> None:
        super().__init__(shape, bits, weights)
        inputs = {"hidden_states": shape.states * shape.target_hidden}
        if not shape.embedding:
            del self._inputs["input_ids"]
            self._text = "inputs_embeds"
            inputs[self._text] = shape.hidden
        for name, width in inputs.items():
            self._inputs[name] = named_input(name, [-1, -1, width], ov.Type.f32)

    def build(self) -> ov.Model:
        shape, config, bits = self._shape, self._shape.config, max(self._bits, 8)
        if shape.embedding:
            sizes = shape.vocabulary, shape.hidden
            table = self._matrix("token_embd", *sizes, bits)
            embedded = ops.gather(table, ops.convert(self._inputs["input_ids"], "i32"), 0)
        else:
            embedded = self._inputs[self._text]
        mask, rotary = self._mask(), self._rotary_tables()
        if config.predicts:
            parts = {"embedding": embedded, "hidden": self._inputs["hidden_states"]}
            normed = [self._norm(f"pre_fc_norm_{name}", part) for name, part in parts.items()]
            x = self._linear("fc", ops.concat(normed, -1), shape.hidden)
            state = self._layer(0, x, mask, rotary)
        else:
            state = self._eagle_layer(embedded, mask, rotary)
        out = self._norm("output_norm", state)
        rows = self._matrix("output", len(shape.tokens), shape.hidden, bits)
        results = [
            named_result("logits", ops.matmul(out, rows, False, True)),
            named_result("d2t", ops.constant(shape.tokens - np.arange(len(shape.tokens)))),
            named_result("state", out if config.norm_output else state),
        ]
        return ov.Model(results, self._sinks, list(self._inputs.values()), "eagle3_head")

    def _eagle_layer(self, embedded: ov.Node, mask: ov.Node, rotary: Rotary) -> ov.Node:
        state = self._fused()
        normed = self._norm("layers.0.hidden_norm", state)
        x = ops.concat([self._norm("blk.0.attn_norm", embedded), normed], -1)
        attended = self._attention(0, x, mask, rotary)
        before = normed if self._shape.config.norm_before_residual else state
        state = ops.add(attended, before)
        return ops.add(self._feed_forward("blk.0.", self._norm("blk.0.ffn_norm", state)), state)

    def _fused(self) -> ov.Node:
        """g: the target's states, joined to the width of the head."""
        shape, states = self._shape, self._inputs["hidden_states"]
        if shape.config.norm_before_fc:
            states = self._norm("input_norm", states)
        if shape.config.fc_norm:
            width = shape.target_hidden
            begins = [index * width for index in range(shape.states)]
            parts = [ops.slice(states, [index], [index + width], [1], [2]) for index in begins]
            normed = [self._norm(f"fc_norm.{index}", part) for index, part in enumerate(parts)]
            states = ops.concat(normed, -1)
        return self._linear("fc", states, shape.hidden)
