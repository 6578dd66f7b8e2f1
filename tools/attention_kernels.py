"""Compares logits of 1 to 32 tokens a forward with those of 64 on OpenVINO's CPU plugin, with and
without an empty sub-sequence: python tools/attention_kernels.py MODEL.xml (a stateful IR)."""

import sys

import numpy as np
import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

CONTEXT, TOKENS, BLOCKS = 40, 64, 16
core = ov.Core()
model = core.read_model(sys.argv[1])
paged_attention_transformation(model, False, False)
properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
compiled = core.compile_model(model, "CPU", properties)
request = compiled.create_infer_request()
ports = {port.any_name: port for port in compiled.inputs}
for name, port in ports.items():
    if "_cache." in name:
        shape = [BLOCKS, *(port.partial_shape[axis].get_length() for axis in (1, 2, 3))]
        request.set_tensor(port, ov.Tensor(port.element_type, ov.Shape(shape)))
block_size = ports["value_cache.0"].partial_shape[2].get_length()
vocabulary = compiled.outputs[0].partial_shape[-1].get_length()
text = np.random.default_rng(0).integers(0, vocabulary, CONTEXT + TOKENS)


def forward(start: int, count: int, empty: bool) -> np.ndarray:
    """Logits [count, vocabulary] of `count` tokens from `start` on, each a sub-sequence."""
    past = list(range(start, start + count))
    tables = [list(range(at // block_size + 1)) for at in past]
    begins, ends = list(range(count + 1)), np.cumsum([0, *map(len, tables)]).tolist()
    if empty:
        past, begins, ends = [*past, 0], [*begins, count], [*ends, ends[-1]]
    inputs = {
        "input_ids": text[start : start + count].astype(np.int64),
        "position_ids": np.arange(start, start + count, dtype=np.int64),
        "past_lens": np.array(past, np.int32),
        "subsequence_begins": np.array(begins, np.int32),
        "block_indices": np.array(sum(tables, []), np.int32),
        "block_indices_begins": np.array(ends, np.int32),
        "max_context_len": np.array(start + count, np.int32),
    }
    for name, values in inputs.items():
        request.set_tensor(ports[name], ov.Tensor(values))
    request.infer()
    return request.get_output_tensor(0).data.reshape(count, -1).copy()


print(f"{compiled.get_property('INFERENCE_NUM_THREADS')} threads, against {TOKENS} tokens at once:")
for empty in (False, True):
    forward(0, CONTEXT, empty)
    reference = forward(CONTEXT, TOKENS, empty)
    for size in (1, 2, 3, 4, 8, 16, 32):
        starts = range(CONTEXT, CONTEXT + TOKENS - size + 1, size)
        rows = np.concatenate([forward(at, size, empty) for at in starts])
        flips = int((rows.argmax(-1) != reference[: len(rows)].argmax(-1)).sum())
        largest = np.abs(rows - reference[: len(rows)]).max()
        kind = "with an empty sub-sequence" if empty else "as usual"
        print(f"{kind}, n = {size}: logits differ by up to {largest:.2g}, {flips} choices differ")
