"""A compiled model, and the tensors of its inputs."""

from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ..faults import ModelError
from . import recurrent

THREADS = "INFERENCE_NUM_THREADS"

Form = tuple[ov.Type, list[int]]  # of a block of a cache or of a table of states

Inputs = Mapping[str, np.ndarray | Sequence[int]]
"""By name: numbers, or an array as the model has it."""


class Instance:
    """A model that the plugin computes."""

    def __init__(self, compiled: ov.CompiledModel):
        self.request = compiled.create_infer_request()
        self.threads = int(compiled.get_property(THREADS))
        self._ports = {name: port for port in compiled.inputs for name in port.names}
        self._cache_ports = [port for name, port in self._ports.items() if "_cache." in name]
        tables = [name for name in self._ports if name.startswith(recurrent.TABLES)]
        self._table_ports = [self._ports[name] for name in tables]
        tensors = self._cache_ports + self._table_ports
        self._given = [port.names for port in compiled.inputs if port not in tensors]
        self.caches, self.tables = _forms(self._cache_ports), _forms(self._table_ports)
        values = [port for name, port in self._ports.items() if name.startswith("value_cache.")]
        self.block_tokens = values[0].partial_shape[2].get_length() if values else 0
        self.vocabulary_size = compiled.outputs[0].partial_shape[-1].get_length()
        self._tensors: dict[tuple[str, int], tuple[ov.Tensor, np.ndarray]] = {}
        self._bound: dict[str, ov.Tensor] = {}

    def set_caches(self, caches: list[ov.Tensor]) -> None:
        for port, cache in zip(self._cache_ports, caches, strict=True):
            self.request.set_tensor(port, cache)

    def set_tables(self, tables: list[ov.Tensor]) -> None:
        for port, table in zip(self._table_ports, tables, strict=True):
            self.request.set_tensor(port, table)

    def run(self, inputs: Inputs) -> list[np.ndarray]:
        """Infer with those of the `inputs` that the model has. Gives its outputs, valid until the
        next run. Raises ModelError if it has others, which the plugin would take as empty."""
        for names in self._given:
            if names.isdisjoint(inputs):
                raise ModelError(
                    f"The IR has the input {min(names, default='')!r}, which is not known here; "
                    "export the model with optimum-intel 2.1."
                )
        self._given = []  # later runs give the same ones
        for name in inputs.keys() & self._ports.keys():
            self._bind(name, inputs[name])
        # Without share_outputs the results would be copied into unused arrays.
        return [*self.request.infer(share_outputs=True).to_tuple()]

    def _bind(self, name: str, values: np.ndarray | Sequence[int]) -> None:
        """Set the input `name`. A new tensor delays the inference, so one is kept for each size of
        numbers; that of an array shares its memory."""
        port = self._ports[name]
        if isinstance(values, np.ndarray):
            self.request.set_tensor(port, ov.Tensor(values, shared_memory=True))
            return
        size = len(values)
        if (name, size) not in self._tensors:
            if len(self._tensors) > 4096:
                self._tensors.clear()
            shape = ov.Shape([size] if len(port.partial_shape) else [])
            tensor = ov.Tensor(port.element_type, shape)
            self._tensors[name, size] = tensor, tensor.data.reshape(-1)
        tensor, content = self._tensors[name, size]
        content[:] = values
        if tensor is not self._bound.get(name):
            self.request.set_tensor(port, tensor)
            self._bound[name] = tensor


class RowInstances:
    """A model whose inputs have a row for each token, compiled for several tokens and for one: with
    fixed shapes the plugin does less, and tensors stay where they are. It computes little, on one
    thread: others that the plugin wakes would take their processors from the kernels'. `threads`
    are those that the plugin would use."""

    def __init__(self, model: ov.Model, core: ov.Core, properties: dict[str, str]):
        self.threads = thread_count(core, properties)
        properties = properties | {THREADS: "1"}
        self._several = Instance(core.compile_model(model, "CPU", properties))
        model.reshape({port: [1, *port.partial_shape[1:]] for port in model.inputs})
        single = core.compile_model(model, "CPU", properties)
        request = self._single = single.create_infer_request()
        self._inputs = {port.any_name: request.get_tensor(port).data for port in single.inputs}
        self._outputs = [request.get_tensor(port).data for port in single.outputs]

    def run(self, inputs: Inputs) -> list[np.ndarray]:
        """The same as `Instance.run`."""
        if any(len(inputs[name]) > 1 for name in self._inputs):
            return self._several.run(inputs)
        for name, content in self._inputs.items():
            content[:] = inputs[name]
        self._single.infer(share_outputs=True)
        return self._outputs


def thread_count(core: ov.Core, properties: dict[str, str]) -> int:
    """How many threads the plugin uses for a model with these properties."""
    x = ops.parameter([1], ov.Type.f32)
    compiled = core.compile_model(ov.Model([ops.result(x)], [x], "threads"), "CPU", properties)
    return int(compiled.get_property(THREADS))


def _forms(ports: list[ov.ConstOutput]) -> list[Form]:
    return [
        (port.element_type, [size.get_length() for size in list(port.partial_shape)[1:]])
        for port in ports
    ]
