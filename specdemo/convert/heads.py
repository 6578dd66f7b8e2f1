"""Draft heads, which read a target's hidden states, as OpenVINO IR.

A draft head is a recurrent network (Hydra, arXiv 2402.05109), without attention, so without a
cache. With x = [norm(hidden), norm(state), norm(embedding(token))], where norm divides by the root
of the mean square, a step is

    s = mix x
    next_state = s + down (silu(gate norm(s)) * (up norm(s)))
    logits = rows (out norm(next_state))

`embedding` and `rows` are the target's; the other matrices are the head's. Between two forwards of
the target, a step takes as long as reading the matrices from memory, so they have 4 bits.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.convert import model_files
from specdemo.convert.weights import Quantized
from specdemo.engine.backends import draft_head, graph
from specdemo.engine.backends.graph import named_input, named_result
from specdemo.errors import BadInput

TOKENS = "head_tokens.npy"
MATRICES = ("mix", "gate_up", "down", "out", "rows")
EPSILON = 1e-6
SAME_TOKEN_COSINE = 0.9  # of a token's embedding in two formats of a model; in two models: 0
_TARGET = ["specdemo", "target"]


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A draft head."""

    weights: dict[str, Quantized]  # matrices by name (`gate_up` is `gate` stacked on `up`)
    tokens: np.ndarray  # token ids of the logits, int64 [V']
    fractions: tuple[float, ...] = ()  # depths (0 to 1) at which the stream is read too

    def save(self, path: Path) -> None:
        """Write an .npz."""
        parts = {
            f"{name}.{part}": array
            for name, matrix in self.weights.items()
            for part, array in matrix._asdict().items()
        }
        np.savez(path, tokens=self.tokens, fractions=self.fractions, **parts)


def load(path: Path) -> HeadWeights:
    """Read a head that `HeadWeights.save` wrote."""
    with np.load(path) as arrays:
        weights = {
            name: Quantized(arrays[f"{name}.values"], arrays[f"{name}.scales"]) for name in MATRICES
        }
        return HeadWeights(weights, arrays["tokens"], tuple(arrays["fractions"].tolist()))


def tables(xml: Path) -> tuple[np.ndarray, np.ndarray]:
    """The embedding and the output matrix of a decoder IR, float32 [vocabulary, width] each."""
    model = graph.read_ir(ov.Core(), xml)
    embedding, output = graph.embedding_of(model), graph.output_projection(model)
    return _values(embedding.input_value(0)), _values(output.input_value(1))


def _values(expression: ov.Output) -> np.ndarray:
    model = ov.Model([ops.result(ops.convert(expression, "f32"))], [])
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    values: np.ndarray = compiled([])[0]
    return values.copy()


def require_target(xml: Path, target: Path, name: str) -> None:
    """Raise BadInput unless the draft head in `xml` was made for the decoder in `target`, which is
    called `name`: its states have the widths that the head reads, and its embedding is the one in
    the head, rounded in whatever way. Raises ModelError for a file that is no draft head."""
    core = ov.Core()
    decoder, parts = graph.read_ir(core, target), 1 + len(draft_head.fractions(xml, core))
    table = graph.embedding_of(decoder).input_value(0)
    states = graph.output_projection(decoder).input_value(0).get_partial_shape()[-1].get_length()
    try:
        head, tokens = core.read_model(xml), np.load(xml.with_name(TOKENS))
        read = head.input("hidden").partial_shape[-1].get_length()
        columns = head.output("logits").partial_shape[-1].get_length()
        gathers = (node for node in head.get_ops() if node.get_type_name() == "Gather")
        embedding = next(gathers).input_value(0)
        sizes = (rows.get_partial_shape()[0].get_length() for rows in (embedding, table))
        known, vocabulary = sizes
        if tokens.shape != (columns,) or not 0 <= tokens.min() <= tokens.max() < known:
            raise ValueError(f"{TOKENS} does not name {columns} of {known} tokens.")
    except (RuntimeError, OSError, ValueError, StopIteration) as error:
        raise draft_head.unusable(xml, error) from error
    if read != parts * states:
        why = f"it reads {read} values, and the states of {name} have {parts * states}"
    elif known != vocabulary:
        why = f"it knows {known} tokens, and {name} {vocabulary}"
    elif _median_cosine(embedding, table, tokens[:64]) < SAME_TOKEN_COSINE:
        why = f"its embedding is not that of {name}"
    else:
        return
    made = head.get_rt_info(_TARGET).astype(str) if head.has_rt_info(_TARGET) else ""
    raise BadInput(
        f"The draft head {xml.parent.name} was made for {made or 'another target'}: {why}; choose "
        "another draft, or train one with `specdemo train-draft`."
    )


def _median_cosine(left: ov.Output, right: ov.Output, rows: np.ndarray) -> float:
    first, second = (_values(ops.gather(matrix, rows, 0).output(0)) for matrix in (left, right))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(np.median((first * second).sum(1) / (norms + 1e-9)))


def write(head: HeadWeights, embedding: np.ndarray, folder: Path, target: str) -> None:
    """Write the head's IR and TOKENS into `folder`. Inputs: hidden [n, H] and state [n, S],
    float32; token [n], int64. Outputs: logits [n, V'] and next_state [n, S], float32.

    `embedding`: the target's, float32 [vocabulary, E]. The IR's runtime information holds the
    fractions and the name and revision of the `target`.
    """
    width, parts = embedding.shape[1], 1 + len(head.fractions)
    state_size = 2 * head.weights["mix"].values.shape[1] - (parts + 1) * width
    hidden = named_input("hidden", [-1, parts * width], ov.Type.f32)
    state = named_input("state", [-1, state_size], ov.Type.f32)
    token = named_input("token", [-1], ov.Type.i64)
    pieces = ops.reshape(hidden, ops.constant([0, parts, width]), True)
    read = ops.reshape(_norm(pieces.output(0)), ops.constant([0, -1]), True)
    x = ops.concat([read, _norm(state.output(0)), _norm(_embedded(embedding, token))], -1)
    s = _product(x, head.weights["mix"])
    gate_up = _product(_norm(s.output(0)), head.weights["gate_up"])
    half = gate_up.get_output_partial_shape(0)[1].get_length() // 2
    gate, up = ops.variadic_split(gate_up, -1, [half, half]).outputs()
    s = ops.add(s, _product(ops.multiply(ops.swish(gate), up), head.weights["down"]))
    out = _product(_norm(s.output(0)), head.weights["out"])
    logits = named_result("logits", _product(out, head.weights["rows"]))
    outputs = [logits, named_result("next_state", s)]
    model = ov.Model(outputs, [hidden, state, token], "draft_head")
    model.set_rt_info(",".join(map(repr, head.fractions)), ["specdemo", "fractions"])
    model.set_rt_info(target, _TARGET)
    ov.save_model(model, folder / model_files.HEAD, compress_to_fp16=False)
    np.save(folder / TOKENS, head.tokens.astype(np.int64))


def _embedded(embedding: np.ndarray, token: ov.Node) -> ov.Output:
    """Embedding rows of `token` up to their scales, float32 [n, E]; stored in int8."""
    values = np.rint(embedding * (127 / np.abs(embedding).max(1, keepdims=True).clip(1e-7)))
    table = ops.constant(values.astype(np.int8))
    return ops.convert(ops.gather(table, token, ops.constant(0)), "f32").output(0)


def _norm(rows: ov.Output) -> ov.Node:
    square = ops.reduce_mean(ops.power(rows, np.float32(2)), [-1], True)
    root = ops.sqrt(ops.add(square, np.float32(EPSILON)))
    return ops.multiply(rows, ops.divide(np.float32(1), root))


def _product(rows: ov.Node, weights: Quantized) -> ov.Node:
    return ops.matmul(rows, weights.expression(), False, True)
