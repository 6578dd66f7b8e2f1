"""Rounds weights to four bits so that a model's products change least along its own text (GPTQ,
arXiv 2210.17323). One layer is in memory at a time, and each is kept in a file when it is done, so
that an interrupted run continues."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from specdemo.convert.decoder import DecoderGraph, Shape
from specdemo.convert.weights import FileWeights, Tensor, compressed, weight_group
from specdemo.engine.products import raw_bytes
from specdemo.host.hardware import processors
from specdemo.host.terminal import Meter, Report, silent

DAMPINGS = (0.03, 0.3, 3.0)  # relative to the mean of the squares
COLUMNS = 1024  # the most that compensate for each other: costs grow with the cube
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
SAMPLE = 64  # rows that choose the damping
STEP = 32  # columns whose errors reach all later ones in one product
LARGEST = 3.0  # norm of an input that counts, relative to the median: a few are 1,000 times that
_ROWS = 2048  # that a thread rounds at once
_LEAST = 1e-6  # magnitude of a scale
_FLOATS = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


class Quantized(NamedTuple):
    """A matrix in int4. `values`: uint8 [rows, columns / 2], two per byte, the first in the lower
    bits. `scales`: float16 [rows, groups]."""

    values: np.ndarray
    scales: np.ndarray

    def floats(self) -> np.ndarray:
        """The matrix, float32 [rows, columns]."""
        bits = np.stack([self.values & 15, self.values >> 4], -1).astype(np.int8)
        signed = ((bits ^ 8) - 8).reshape(*self.scales.shape, -1)
        return (signed * self.scales[:, :, None].astype(np.float32)).reshape(len(bits), -1)

    def expression(self) -> ov.Output:
        """The matrix for a graph, float32 [rows, columns]."""
        rows, groups = self.scales.shape
        group = 2 * self.values.shape[1] // groups
        integers = ov.Tensor(ov.Type.i4, ov.Shape([rows, groups, group]))
        raw_bytes(integers)[:] = self.values.reshape(-1)
        return compressed(integers, self.scales[:, :, None])


class Squares:
    """Sums of products of a matrix's inputs, float32 [2, columns, columns]: those of every other
    text, and the rest; of more columns than `most` those of about `most` side by side. `group`
    columns share a scale."""

    def __init__(self, columns: int, group: int, most: int = COLUMNS) -> None:
        width = max(most // group, 1) * group
        self.group, self._texts = group, 0
        begins = range(0, columns, width)
        self.parts = [slice(begin, min(begin + width, columns)) for begin in begins]
        sizes = [part.stop - part.start for part in self.parts]
        self.sums = [np.zeros((2, size, size), np.float32) for size in sizes]

    def add(self, inputs: np.ndarray) -> None:
        """Add the inputs of a text, float32 [tokens, columns]."""
        for part, sums in zip(self.parts, self.sums, strict=True):
            sums[self._texts % 2] += inputs[:, part].T @ inputs[:, part]
        self._texts += 1


class Rounding:
    """Rounds matrices whose inputs have these `squares`. Columns with the largest inputs come
    first; later ones compensate for their error. Scales are the best of SHARES of the one that cuts
    nothing.

    The damping is the one of DAMPINGS with which rows of the `sample`, rounded along half of the
    texts, are best along the others: with too little, weights are fitted to the texts themselves,
    and along other text they are worse than rounded to the nearest value."""

    def __init__(self, squares: Squares, sample: np.ndarray) -> None:
        self._group, self._parts, self._plans = squares.group, squares.parts, []
        for part, (known, other) in zip(squares.parts, squares.sums, strict=True):
            rows, errors = sample[:, part], []
            for damping in DAMPINGS:
                wrong = rows - self._columns(rows, *_plan(known, damping)).floats()
                errors.append(((wrong @ other) * wrong).sum())
            self._plans.append(_plan(known + other, DAMPINGS[int(np.argmin(errors))]))

    def round(self, rows: int, read: Callable[[int, int], np.ndarray]) -> Quantized:
        """A matrix of so many `rows` in int4; `read(first, end)` gives some of them."""
        pieces = [(first, min(first + _ROWS, rows)) for first in range(0, rows, _ROWS)]
        with ThreadPoolExecutor(processors()) as pool:
            rounded = list(pool.map(lambda piece: self._piece(read(*piece)), pieces))
        return Quantized(*(np.concatenate(parts) for parts in zip(*rounded, strict=True)))

    def _piece(self, rows: np.ndarray) -> Quantized:
        plans = zip(self._parts, self._plans, strict=True)
        parts = [self._columns(rows[:, part], *plan) for part, plan in plans]
        return Quantized(*(np.concatenate(side, axis=1) for side in zip(*parts, strict=True)))

    def _columns(
        self, matrix: np.ndarray, weights: np.ndarray, order: np.ndarray, factor: np.ndarray
    ) -> Quantized:
        columns, rows = matrix.shape[1], len(matrix)
        left = np.array(matrix.T, np.float32, order="C")  # a column's weights lie side by side
        groups = left.reshape(-1, self._group, rows), weights.reshape(-1, self._group)
        scales = np.stack([_scales(*group) for group in zip(*groups, strict=True)])
        left, exact = left[order], scales.astype(np.float32)
        values = np.empty((columns, rows), np.int8)
        for begin in range(0, columns, STEP):
            end = min(begin + STEP, columns)
            errors = np.empty((end - begin, rows), np.float32)
            for row in range(begin, end):
                column, scale = order[row], exact[order[row] // self._group]
                values[column] = np.rint(left[row] / scale).clip(-8, 7)
                errors[row - begin] = (left[row] - values[column] * scale) / factor[row, row]
                left[row + 1 : end] -= factor[row, row + 1 : end, None] * errors[row - begin]
            left[end:] -= factor[begin:end, end:].T @ errors
        bits = np.ascontiguousarray(values.T).view(np.uint8) & 15
        return Quantized(bits[:, ::2] | bits[:, 1::2] << 4, np.ascontiguousarray(scales.T))


def _plan(squares: np.ndarray, damping: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The columns' weights, their order, and in this order the upper Cholesky factor of the inverse
    of the damped `squares`; float32."""
    weights = np.diag(squares).astype(np.float32)
    order = np.argsort(-weights, kind="stable")
    damped = squares[order][:, order].astype(np.float64)
    damped[np.diag_indices_from(damped)] += damping * weights.mean() + 1e-9
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    return weights, order, np.ascontiguousarray(factor, np.float32)


def _scales(part: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The scale of each column of `part` [group, rows], float16 [rows], of those in SHARES that
    rounds it best, with squares of errors times `weights`."""
    largest = np.take_along_axis(part, np.abs(part).argmax(0)[None], 0)[0]
    widest = np.where(np.abs(largest) < 8 * _LEAST, _LEAST, -largest / 8)
    tried = [(share * widest).astype(np.float16) for share in SHARES]
    errors = []
    for scale in tried:
        exact = scale.astype(np.float32)
        errors.append(weights @ (part - np.rint(part / exact).clip(-8, 7) * exact) ** 2)
    best: np.ndarray = np.choose(np.argmin(errors, 0), tried)
    return best


class LayerGraph(DecoderGraph):
    """The graph of one layer of a decoder, or of its last norm (`layer` None): from `state` to the
    next state, and to the inputs of the layer's matrices, whose names are in `read`."""

    _text = "state"

    def __init__(self, shape: Shape, weights: FileWeights, layer: int | None) -> None:
        super().__init__(shape, 16, weights)
        self._number = layer
        self._read: dict[str, tuple[ov.Node, list[str]]] = {}
        del self._inputs["input_ids"]
        self._inputs["state"] = ops.parameter([-1, -1, shape.hidden], ov.Type.f32, name="state")
        self._inputs["state"].output(0).get_tensor().set_names({"state"})

    @property
    def read(self) -> list[list[str]]:
        return [names for _, names in self._read.values()]

    def build(self) -> ov.Model:
        state = self._inputs["state"]
        if self._number is None:
            outputs = [self._norm("output_norm", state)]
            return ov.Model([ops.result(output) for output in outputs], [state], "norm")
        rotary = None if self._shape.family.positions else self._rotary_tables()
        outputs = [self._layer(self._number, state, self._mask(), rotary)]
        outputs += [node for node, _ in self._read.values()]
        results = [ops.result(output) for output in outputs]
        return ov.Model(results, self._sinks, list(self._inputs.values()), "layer")

    def _linear(self, name: str, state: ov.Node, rows: int) -> ov.Node:
        self._read.setdefault(state.get_name(), (state, []))[1].append(name)
        return super()._linear(name, state, rows)


class RoundedWeights(FileWeights):
    """Weights of files; those of four bits as `round_weights` kept them in `folder`."""

    def __init__(
        self, tensors: Mapping[str, Tensor], report: Report, name: str, folder: Path
    ) -> None:
        super().__init__(tensors, report, name)
        self._folder = folder

    def matrix(self, name: str, rows: int, columns: int, bits: int) -> ov.Output:
        if bits != 4:
            return super().matrix(name, rows, columns, bits)
        self._taken(name, (rows, columns))
        with np.load(self._folder / f"{name}.npz") as file:
            return Quantized(**file).expression()


def round_weights(
    shape: Shape,
    tensors: Mapping[str, Tensor],
    own_text: Callable[[], list[list[int]]],
    folder: Path,
    report: Report,
    name: str,
) -> None:
    """Round the matrices of a decoder, except its embedding, so that their products along its
    `own_text` (token ids) change least, into `folder`. Continues what an earlier call with the same
    folder began, along the same text. Raises FetchError."""
    folder.mkdir(exist_ok=True)
    if not (folder / "text.json").is_file():
        _save(folder, "text.json", own_text())
    texts = json.loads((folder / "text.json").read_bytes())
    files, core, lengths = FileWeights(tensors, silent, name), ov.Core(), list(map(len, texts))
    meter = Meter(report, f"Rounding {name} along its own text", shape.bytes(8, 8))
    begun = sorted(folder.glob("state-*.npy"))
    state = np.load(begun[-1]) if begun else _embedded(shape, tensors, texts)
    for number in range(int(begun[-1].stem[-4:]) if begun else 0, shape.layers + 1):
        layer = LayerGraph(shape, files, number if number < shape.layers else None)
        model = layer.build()
        read = layer.read or [["token_embd" if shape.tied else "output"]]
        widths = [port.partial_shape[-1].get_length() for port in model.outputs[-len(read) :]]
        squares = [Squares(width, weight_group(width)) for width in widths]
        request = core.compile_model(model, "CPU", _FLOATS).create_infer_request()
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            own = state[end - length : end]
            outputs = _outputs(request, own)
            for total, inputs in zip(squares, outputs[-len(read) :], strict=True):
                total.add(_without_outliers(inputs))
            own[:] = outputs[0]
        del layer, model, request
        for names, total in zip(read, squares, strict=True):
            matrices = [(name, tensors[name]) for name in (f"{matrix}.weight" for matrix in names)]
            first = matrices[0][1]
            rounding = Rounding(total, first.read(0, min(SAMPLE, first.shape[0])))
            for matrix, tensor in matrices:
                _save(folder, f"{matrix}.npz", rounding.round(tensor.shape[0], tensor.read))
                meter.update(math.prod(tensor.shape))
        _save(folder, f"state-{number + 1:04}.npy", state)
        (folder / f"state-{number:04}.npy").unlink(missing_ok=True)


def _embedded(
    shape: Shape, tensors: Mapping[str, Tensor], texts: Sequence[Sequence[int]]
) -> np.ndarray:
    """The state that enters the first layer, float32 [tokens, hidden]."""

    ids = np.concatenate([np.asarray(text) for text in texts])
    state = tensors["token_embd.weight"].rows(ids).read(0, len(ids))
    if shape.family.positions:
        positions = np.concatenate([np.arange(len(text)) for text in texts])
        state += tensors["position_embd.weight"].rows(positions).read(0, len(ids))
    return state


def _outputs(request: ov.InferRequest, state: np.ndarray) -> list[np.ndarray]:
    """The outputs of a LayerGraph for the state of a text, each float32 [tokens, width]."""
    request.reset_state()
    tokens = len(state)
    inputs = {
        "state": state[None],
        "attention_mask": np.ones((1, tokens), np.int64),
        "position_ids": np.arange(tokens)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    known = {port.any_name for port in request.model_inputs}
    request.infer({name: inputs[name] for name in known})
    return [request.get_output_tensor(index).data[0] for index in range(len(request.model_outputs))]


def _without_outliers(inputs: np.ndarray) -> np.ndarray:
    """The inputs of a matrix, [tokens, columns], with those scaled down that are far larger than
    most: a first token's may be 1,000 times as large and would outweigh all others."""
    norms = np.linalg.norm(inputs, axis=1, keepdims=True)
    scaled: np.ndarray = inputs * np.minimum(
        1, LARGEST * np.median(norms) / np.maximum(norms, _LEAST)
    )
    return scaled


def _save(folder: Path, name: str, content: Quantized | np.ndarray | list[list[int]]) -> None:
    """Write an .npz, .npy or .json in one step."""
    partial = folder / f"partial{Path(name).suffix}"
    if isinstance(content, Quantized):
        np.savez(partial, **content._asdict())
    elif isinstance(content, np.ndarray):
        np.save(partial, content)
    else:
        partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, folder / name)
