"""The recurrent layers of a hybrid decoder (gated delta nets, short convolutions): a forward writes
their states into blocks of tables, so that a sequence goes back by reading an earlier block
(docs/reference/recurrent.md)."""

from itertools import accumulate, chain

import openvino as ov
from openvino import opset13 as ops

from ..cache import RecurrentSequence
from ..faults import ModelError
from ..forwards import Run
from . import graph

SEQUENCES = "la.subsequence_begins"  # the added input, int32 [sequences + 1]
TABLES = ("conv_state_table.", "gated_delta_state_table.")  # inputs of a paged graph

FURTHER_BLOCKS = 2
"""Blocks of a table that belong to no sequence: zeros, before the first token, and one for states
to which no sequence goes back."""


def separate_sequences(model: ov.Model) -> None:
    """Let the recurrent layers of a paged decoder, if it has some, read where sequences begin from
    the new input SEQUENCES: they take the tokens of a run in order, while each of them is a
    sub-sequence of its own for attention. Repairs positions too."""
    layers = [node for node in model.get_ops() if node.get_type_name() in graph.RECURRENT]
    if not layers:
        return
    begins = graph.named_input(SEQUENCES, [-1], ov.Type.i32)
    for layer in layers:
        for value in layer.inputs():
            if "subsequence_begins" in value.get_source_output().get_names():
                value.replace_source_output(begins.output(0))
    model.add_parameters([begins])
    _repair_rotary(model)
    model.validate_nodes_and_infer_types()


def _repair_rotary(model: ov.Model) -> None:
    """Compute rotary angles as positions times inverse frequencies where the export interleaves
    those of three axes by ScatterNDUpdate, as Qwen3.5's does: in paged form all tokens would get
    the angles of the last one. In text a token has the same position on all axes."""
    for cosine in [node for node in model.get_ordered_ops() if node.get_type_name() == "Cos"]:
        joined = cosine.input_value(0).get_node()
        product, kinds = joined, set()
        while product.get_type_name() not in ("MatMul", "Parameter", "Constant"):
            kinds.add(product.get_type_name())
            sources = [value.get_node() for value in product.input_values()]
            product = next((n for n in sources if n.get_type_name() != "Constant"), sources[0])
        if "ScatterNDUpdate" not in kinds:
            continue
        frequencies = product.input_value(0) if product.input_values() else product.output(0)
        constant = graph.source_of(frequencies.get_node(), *graph.WEIGHTS)
        if product.get_type_name() != "MatMul" or constant.get_type_name() != "Constant":
            raise ModelError(
                "The IR computes rotary positions in an unknown way; export the model with "
                "optimum-intel 2.1 and transformers 5.2."
            )
        width = joined.get_output_partial_shape(0)[-1].get_length()
        every = ops.convert(ops.reshape(frequencies, [1, 1, -1], False), "f32")
        inverse = ops.slice(every, [0], [width // 2], [1], [2])
        positions = model.input("position_ids").node.output(0)
        rows = ops.convert(ops.unsqueeze(positions, ops.constant([1, 2])), "f32")
        angles = ops.multiply(rows, inverse)
        joined.output(0).replace(ops.concat([angles, angles], 2).output(0))


def inputs_of(batch: list[Run], padding: int) -> dict[str, list[int]]:
    """The inputs for the recurrent layers of a forward of these runs and `padding` tokens, by name.
    The first block of a run has the state before it. The others get the states after each of its
    tokens if it is stepwise, else after the last."""
    parts = []
    for run in batch:
        sequence = run.sequence
        assert isinstance(sequence, RecurrentSequence)
        zeros = sequence.pool.states.limit
        unread = zeros + 1
        begin, end = sequence.length, sequence.length + len(run.tokens)
        ends = range(begin + 1 if run.stepwise else end, end + 1)
        read = sequence.states[begin] if begin else zeros
        written = [sequence.states.get(end, unread) for end in ends]
        parts.append((len(run.tokens), begin, [read, *written], run.stepwise))
    if padding:
        parts.append((padding, 0, [zeros, unread], False))
    tokens, before, blocks, stepwise = zip(*parts, strict=True)
    return {
        SEQUENCES: [0, *accumulate(tokens)],
        "la.past_lens": [*before],
        "la.block_indices": [*chain.from_iterable(blocks)],
        "la.block_indices_begins": [0, *accumulate(map(len, blocks))],
        "la.cache_interval": [*map(int, stepwise)],
    }
