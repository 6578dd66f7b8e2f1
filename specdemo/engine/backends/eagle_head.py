"""A compiled EAGLE-3 head or prediction layer (`convert.eagle3` has the equations): a decoder of
one layer with its own paged KV cache, which also reads states of the target model.

The graph is split at g, the states in the head's width: a row of g comes from the target's states,
or in a chain from the head's own row before.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ..faults import ModelError
from ..forwards import ModelSettings, Run
from . import graph
from .paged import PagedModel

GIVEN = "hidden_states"  # the input for the target's states, float32 [tokens, 1, S]
JOINED = "joined_states"  # the input for g, float32 [tokens, 1, H]


class HeadGraphs(NamedTuple):
    """A head as two graphs."""

    joining: ov.Model | None  # makes g of the target's states; None: they are g
    step: ov.Model  # the rest, which reads g
    tokens: np.ndarray  # the ids of its logits, int64 [V']
    states: int  # values of a token's states
    width: int  # of g


def read_head(
    core: ov.Core, xml: Path, target: Path, token_ids: np.ndarray | None = None
) -> HeadGraphs:
    """The head in `xml`, with the embedding of the decoder `target` if it has none. Its logits are
    limited to `token_ids` (int64 [V], ascending) if it has those of all tokens. Raises
    ModelError."""
    model = graph.read_ir(core, xml)
    try:
        if "input_ids" not in {port.any_name for port in model.inputs}:
            _embed(model, graph.read_ir(core, target))
        graph.page_attention(model)
        return _split(model, token_ids)
    except RuntimeError as error:
        raise ModelError(f"{xml.name} is no draft head: {graph.last_line(error)}") from error


class EagleHead(PagedModel):
    """The head in `xml`, IR of `convert.eagle3` or of optimum-intel's export. Column j of its
    logits stands for token `token_ids[j]`. Without an embedding it uses that of the IR `target`.

    Row i of a sequence is the pair of the target's states of token i and of token i + 1, so its
    `tokens` are those of the text from the second on. Raises ModelError."""

    def __init__(self, xml: Path, target: Path, settings: ModelSettings, core: ov.Core):
        self._target = target
        super().__init__(xml, settings, core)

    def _read(self, core: ov.Core, xml: Path) -> ov.Model:
        head = read_head(core, xml, self._target, self.settings.token_ids)
        self.token_ids, self._width = head.tokens, head.width
        self._join = None
        if head.joining is not None:
            joining = core.compile_model(head.joining, "CPU", self.plugin)
            self._join = joining.create_infer_request()
        return head.step

    @property
    def joins(self) -> bool:
        """Whether it makes g of several states, as EAGLE-3 heads do."""
        return self._join is not None

    def _states(self, batch: list[Run], size: int) -> dict[str, np.ndarray]:
        rows = np.zeros((size, 1, self._width), np.float32)
        parts = [run.states for run in batch if run.states is not None]
        if parts:
            joined = np.concatenate(parts)[:, None]
            if self._join is not None:
                joined = self._join.infer({GIVEN: joined}, share_inputs=True)[0]
        begin = read = 0
        for run in batch:
            end = begin + len(run.tokens)
            if run.states is not None:
                rows[begin:end] = joined[read : read + len(run.tokens)]
                read += len(run.tokens)
            elif run.chained is not None:
                rows[begin:end, 0] = run.chained
            begin = end
        return {JOINED: rows}


def _embed(model: ov.Model, target: ov.Model) -> None:
    vectors = model.input("inputs_embeds").node
    tokens = graph.named_input("input_ids", [-1, -1], ov.Type.i64)
    table = graph.embedding_of(target).input_value(0)
    rows = ops.gather(table, ops.convert(tokens, "i32"), ops.constant(0))
    vectors.output(0).replace(ops.convert(rows, "f32").output(0))
    model.add_parameters([tokens])
    model.remove_parameter(vectors)
    model.validate_nodes_and_infer_types()


def _take_tokens(model: ov.Model) -> np.ndarray:
    """The token ids of the logits, int64 [V']. Removes the output `d2t`."""
    port = model.output("d2t")
    offsets = port.node.input_value(0).get_node()
    if offsets.get_type_name() != "Constant":
        raise RuntimeError("its output d2t is not constant")
    values: np.ndarray = offsets.data.astype(np.int64).reshape(-1)
    model.remove_result(port.node)
    return values + np.arange(len(values))


def _split(model: ov.Model, token_ids: np.ndarray | None) -> HeadGraphs:
    """Cut a head at g, its first matrix product of the target's states alone, or else at these. The
    rest gives logits, their log-sum-exp, and the states that take the place of g in a chain."""
    tokens = _take_tokens(model)
    source = model.input(GIVEN).node
    reached = {source.get_name()}
    for node in model.get_ordered_ops():
        if any(value.get_node().get_name() in reached for value in node.input_values()):
            reached.add(node.get_name())
            if node.get_type_name() == "MatMul":
                break
    read = node.input_value(0).get_node()
    mixed = read.get_type_name() == "Concat" and not reached.issuperset(
        value.get_node().get_name() for value in read.input_values()
    )
    states = node.get_input_partial_shape(1)[-1].get_length()
    node = source if mixed else node  # a product of the embedding too
    width = node.get_output_partial_shape(0)[-1].get_length()
    joined = graph.named_input(JOINED, [-1, 1, width], ov.Type.f32)
    for port in node.output(0).get_target_inputs():
        port.replace_source_output(joined.output(0))
    before = None if mixed else ov.Model([ops.result(node.output(0))], [source], "joined_states")
    model.add_parameters([joined])
    model.remove_parameter(source)
    model.validate_nodes_and_infer_types()
    named = [port for port in model.outputs if "state" in port.names]
    if named:
        state = named[0].node.input_value(0).get_node()
        model.remove_result(named[0].node)
    else:
        state = graph.residual_stream(model, ov.Dimension(width))[-1]
    every = np.array_equal(tokens, np.arange(len(tokens)))
    if (kept := graph.limit_logits(model, token_ids if every else None)) is not None:
        tokens = kept
    graph.add_states(model, [state])
    return HeadGraphs(before, model, tokens, width if mixed else states, width)
