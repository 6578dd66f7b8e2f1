"""A compiled draft head (Hydra, arXiv 2402.05109): computes logits of the next token from a hidden
state of the target model and the tokens after it.

It has no attention and so no cache: its state carries the draft tokens read so far.
"""

from contextlib import suppress
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov

from ..cost_model import CostModel
from ..faults import ModelError
from ..messages import Logits, Run
from .graph import HIDDEN, add_log_sums, last_line, split_products
from .kernels import F32, plugin_properties, use_kernels

_FRACTIONS = ["specdemo", "fractions"]
_STATES = (HIDDEN, "state")

_PROPERTIES = plugin_properties([F32])
"""Not bf16, the default of a Xeon with AMX: a step mostly reads the weights, which the target model
has evicted from the processor's caches."""


class DraftHead:
    """The draft head in `xml`; column j of its logits stands for token `token_ids[j]` (int64
    [V']). It is computed `in_kernels`, once they are compiled for the target model, if they can as
    one node. Raises ModelError for any other file."""

    def __init__(self, xml: Path, core: ov.Core, in_kernels: bool = False):
        try:
            model = core.read_model(xml)
            self.token_ids = np.load(xml.with_name("head_tokens.npy")).astype(np.int64)
            self._widths = [model.input(name).partial_shape[-1].get_length() for name in _STATES]
            add_log_sums(model)
            if in_kernels:
                split_products(model)
                with suppress(ModelError):
                    use_kernels(model, self, only_whole=True)
            several = core.compile_model(model, "CPU", _PROPERTIES)
            # With a fixed shape the plugin does less: 0.46 instead of 0.58 ms while decoding.
            model.reshape({port: [1, *port.partial_shape[1:]] for port in model.inputs})
            single = core.compile_model(model, "CPU", _PROPERTIES)
        except (RuntimeError, OSError, ValueError) as error:
            raise unusable(xml, error) from error
        self._single, self._several = single.create_infer_request(), several.create_infer_request()
        self._bound = {1: self._bind(self._single, 1)}
        self.states_width = self._widths[0]
        self.seconds = 0.0
        self.costs = CostModel()

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Gives one row of logits with the next state for each run of one token, valid until the
        next forward. Raises ModelError when the inference fails."""
        count = len(batch)
        request = self._single if count == 1 else self._several
        if count not in self._bound:
            self._bound = {1: self._bound[1], count: self._bind(request, count)}
        (hidden, state, token), (rows, states, log_sums) = self._bound[count]
        for row, run in enumerate(batch):
            hidden[row] = run.states
            state[row] = 0 if run.chained is None else run.chained
            token[row] = run.tokens[0]
        before = perf_counter()
        try:
            request.infer(share_outputs=True)
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        seconds = perf_counter() - before
        self.seconds += seconds
        self.costs.record(count, seconds)
        steps = [slice(row, row + 1) for row in range(count)]
        return [Logits(rows[step], log_sums[step, 0], states[step]) for step in steps]

    def _bind(
        self, request: ov.InferRequest, count: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Views of the inputs and outputs of `count` steps, which every inference overwrites:
        passing arrays and asking for them costs more than a copy."""
        inputs = [ov.Tensor(ov.Type.f32, ov.Shape([count, width])) for width in self._widths]
        inputs.append(ov.Tensor(ov.Type.i64, ov.Shape([count])))
        for name, tensor in zip((*_STATES, "token"), inputs, strict=True):
            request.set_tensor(name, tensor)
        widths = (len(self.token_ids), self._widths[1], 1)
        outputs = [ov.Tensor(ov.Type.f32, ov.Shape([count, width])) for width in widths]
        for index, tensor in enumerate(outputs):
            request.set_output_tensor(index, tensor)
        return [tensor.data for tensor in inputs], [tensor.data for tensor in outputs]


def fractions(xml: Path, core: ov.Core) -> tuple[float, ...]:
    """The fractions of the residual stream (`Taps`) that the head in `xml` reads. Raises
    ModelError."""
    try:
        model = core.read_model(xml)
        if not model.has_rt_info(_FRACTIONS):
            return ()
        listed = model.get_rt_info(_FRACTIONS).astype(str)
        shares = tuple(float(share) for share in listed.split(",") if share)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"it reads the fractions {shares} of the target.")
    except (RuntimeError, ValueError) as error:
        raise unusable(xml, error) from error
    return shares


def unusable(xml: Path, error: Exception) -> ModelError:
    return ModelError(f"{xml.name} is not a usable draft head: {last_line(error)}")
