"""Draft heads as OpenVINO IR: a recurrent network over a target's hidden states (Hydra, arXiv
2402.05109), without attention, so without a cache.

With x = [norm(hidden), norm(state), norm(embedding(token))], where norm divides by the root of the
mean square, a step is

    s = mix x
    next_state = s + down (silu(gate norm(s)) * (up norm(s)))
    logits = rows (out norm(next_state))

`embedding` and `rows` are the target's own, the other matrices the head's. Knows numpy and OpenVINO
only; needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.models import ir

TOKENS = "head_tokens.npy"
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix in int8, values int8 [rows, columns], with a scale for each row, float16
    [rows, 1]."""

    values: np.ndarray
    scales: np.ndarray


def quantize(matrix: np.ndarray) -> Quantized:
    """Round a matrix [rows, columns] to int8, symmetric, each row by its own largest value."""
    scales = np.maximum(np.abs(matrix).max(1, keepdims=True) / 127, 1e-7).astype(np.float16)
    values = np.rint(matrix / scales.astype(np.float32)).clip(-127, 127)
    return Quantized(values.astype(np.int8), scales)


@dataclass(frozen=True, slots=True)
class Head:
    """What a head has of its own: its matrices by their names above (`gate_up` is the gate above
    up), the ids of its logits, int64 [V'], and the parts of the target's residual stream that it
    reads beside the input of the target's output matrix."""

    weights: dict[str, Quantized]
    tokens: np.ndarray
    fractions: tuple[float, ...] = ()

    def save(self, path: Path) -> None:
        """Write an .npz."""
        parts = {f"{name}.values": one.values for name, one in self.weights.items()}
        parts |= {f"{name}.scales": one.scales for name, one in self.weights.items()}
        np.savez(path, tokens=self.tokens, fractions=self.fractions, **parts)


def load(path: Path) -> Head:
    """Read what `Head.save` wrote."""
    with np.load(path) as held:
        names = [name.removesuffix(".values") for name in held if name.endswith(".values")]
        weights = {
            name: Quantized(held[f"{name}.values"], held[f"{name}.scales"]) for name in names
        }
        return Head(weights, held["tokens"], tuple(held["fractions"].tolist()))


def tables(xml: Path) -> tuple[np.ndarray, np.ndarray]:
    """The embedding and the output matrix of a decoder IR, float32 [vocabulary, width] each."""
    model = ov.Core().read_model(str(xml))
    head = model.get_results()[0].input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    lookup = next(
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Gather"
        and len(node.get_input_partial_shape(0)) == 2
        and node.get_input_partial_shape(0).is_static
        and node.get_output_partial_shape(0).rank.get_length() == 3
    )
    results = [ops.result(value) for value in (lookup.input_value(0), head.input_value(1))]
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    found = ov.Core().compile_model(ov.Model(results, []), "CPU", exact)([])
    return found[0].copy(), found[1].copy()


def write(head: Head, embedding: np.ndarray, output: np.ndarray, folder: Path) -> None:
    """Write XML and TOKENS into `folder`: the inputs hidden [n, H] and state [n, S], float32, and
    token [n], int64; the outputs logits [n, V'] and next_state [n, S], float32.

    `embedding` and `output`, float32 [vocabulary, E], are the target's. The IR keeps the fractions
    as runtime information.
    """
    model = _graph(head.weights, quantize(embedding), quantize(output[head.tokens]))
    model.set_rt_info(",".join(map(repr, head.fractions)), ["specdemo", "fractions"])
    ov.save_model(model, folder / ir.HEAD, compress_to_fp16=False)
    np.save(folder / TOKENS, head.tokens.astype(np.int64))


def _graph(weights: dict[str, Quantized], embedding: Quantized, rows: Quantized) -> ov.Model:
    state_size, given = weights["mix"].values.shape
    width = embedding.values.shape[1]
    hidden = _input("hidden", given - state_size - width)
    state = _input("state", state_size)
    token = ops.parameter(ov.PartialShape([-1]), ov.Type.i64, name="token")
    token.output(0).get_tensor().set_names({"token"})
    axis = ops.constant(0)
    embedded = ops.multiply(
        ops.convert(ops.gather(ops.constant(embedding.values), token, axis), "f32"),
        ops.convert(ops.gather(ops.constant(embedding.scales), token, axis), "f32"),
    )
    pieces = ops.split(hidden, ops.constant(-1), (given - state_size) // width - 1).outputs()
    parts = [_norm(part) for part in (*pieces, state.output(0), embedded.output(0))]
    s = _product(ops.concat(parts, -1), weights["mix"])
    gate_up = _product(_norm(s.output(0)), weights["gate_up"])
    gate, up = ops.split(gate_up, ops.constant(-1), 2).outputs()
    s = ops.add(s, _product(ops.multiply(ops.swish(gate), up), weights["down"]))
    logits = _product(_product(_norm(s.output(0)), weights["out"]), rows)
    results = []
    for name, output in (("logits", logits), ("next_state", s)):
        output.output(0).get_tensor().set_names({name})
        results.append(ops.result(output.output(0)))
    return ov.Model(results, [hidden, state, token], "draft_head")


def _input(name: str, size: int) -> ov.Node:
    parameter = ops.parameter(ov.PartialShape([-1, size]), ov.Type.f32, name=name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _norm(rows: ov.Output) -> ov.Node:
    """Rows [n, size], each divided by the root of its mean square."""
    square = ops.reduce_mean(ops.multiply(rows, rows), ops.constant([-1]), True)
    return ops.divide(rows, ops.sqrt(ops.add(square, ops.constant(np.float32(EPSILON)))))


def _product(rows: ov.Node, weights: Quantized) -> ov.Node:
    values = ops.convert(ops.constant(weights.values), "f16")
    matrix = ops.convert(ops.multiply(values, ops.constant(weights.scales)), "f32")
    return ops.matmul(rows, matrix, False, True)
