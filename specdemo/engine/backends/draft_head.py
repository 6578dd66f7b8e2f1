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
from ..forwards import Logits, Run
from .forward import KernelForward
from .graph import HIDDEN, add_log_sums, add_states, last_line
from .instance import Inputs, RowInstances
from .kernels import F32, plugin_properties

_FRACTIONS = ["specdemo", "fractions"]
_STATES = (HIDDEN, "state")

_PROPERTIES = plugin_properties([F32])
"""Not bf16, the default of a Xeon with AMX: a step mostly reads the weights, which the target model
has evicted from the processor's caches."""


class DraftHead:
    """The draft head in `xml`; column j of its logits stands for token `token_ids[j]` (int64
    [V']). It is computed `in_kernels`, once they are compiled for the target model, if they
    can. Raises ModelError for any other file."""

    def __init__(self, xml: Path, core: ov.Core, in_kernels: bool = False):
        try:
            model = core.read_model(xml)
            self.token_ids = np.load(xml.with_name("head_tokens.npy")).astype(np.int64)
            self._widths = [model.input(name).partial_shape[-1].get_length() for name in _STATES]
            state = model.output("next_state")
            model.remove_result(state.node)
            add_log_sums(model)
            add_states(model, [state.node.input_value(0).get_node()])
            self._instance = _compiled(model, core, in_kernels)
        except (RuntimeError, OSError, ValueError) as error:
            raise unusable(xml, error) from error
        self.states_width = self._widths[0]
        self.seconds = 0.0
        self.costs = CostModel()

    def forward(self, batch: list[Run]) -> list[Logits]:
        """Gives one row of logits with the next state for each run of one token, valid until the
        next forward. Raises ModelError when the inference fails."""
        count = len(batch)
        hidden, state = (np.zeros((count, width), np.float32) for width in self._widths)
        for row, run in enumerate(batch):
            hidden[row] = run.states
            if run.chained is not None:
                state[row] = run.chained
        tokens = [run.tokens[0] for run in batch]
        inputs: Inputs = {"token": tokens, HIDDEN: hidden, "state": state}
        before = perf_counter()
        try:
            rows, log_sums, states = self._instance.run(inputs)
        except RuntimeError as error:
            raise ModelError(f"The inference failed: {last_line(error)}") from error
        seconds = perf_counter() - before
        self.seconds += seconds
        self.costs.record(count, seconds)
        steps = [slice(row, row + 1) for row in range(count)]
        return [Logits(rows[step], log_sums[step, 0], states[step]) for step in steps]


def _compiled(model: ov.Model, core: ov.Core, in_kernels: bool) -> KernelForward | RowInstances:
    if in_kernels:
        with suppress(ModelError):
            return KernelForward(model, core, _PROPERTIES)
    return RowInstances(model, core, _PROPERTIES)


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
