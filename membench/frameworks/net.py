"""A captured graph read as a network of a framework's layers: layers in order, and the blobs between them.

Two steps. First every layer's output is a value of its own, including those that torch wrote in place. Then values
become blobs: a layer that may be in place writes onto its input's blob unless another layer, or the backward pass of
the layer that made it, reads that input.
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from membench.core.errors import UnsupportedModel
from membench.core.graph.call import values_in
from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import EXTERNAL_ROLES, Kind, LayerTasks, Role, TaskGraph
from membench.frameworks.layers import LayerLibrary, LayerType


@dataclass(frozen=True)
class NetLayer:
    """One layer of the network.

    Attributes:
        inputs: blobs, once per read.
        output: the first input's blob where the layer is in place.
        weights, statistics, labels: blocks of the captured graph.
        operations: floating-point operations of its forward pass; each task of its backward pass takes as many.
        convolution: its geometry, if it is a convolution.
        channel_bytes: size of a vector with one number per channel, if it keeps such vectors.
        window: numbers in a window of a pooling whose traffic depends on them.
    """

    name: str
    type: LayerType
    inputs: tuple[int, ...]
    output: int
    weights: tuple[int, ...] = ()
    statistics: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    operations: int = 0
    convolution: Convolution | None = None
    channel_bytes: int = 0
    window: int = 0

    @property
    def keeps(self) -> tuple[str, ...]:
        """The full-size blocks that its forward writes and its backward reads."""
        return self.type.keeps + (self.type.keeps_in_place if self.is_in_place else ())

    @property
    def is_in_place(self) -> bool:
        return self.output in self.inputs


@dataclass(frozen=True)
class Net:
    """A network.

    Attributes:
        blob_bytes: by blob; its gradient is as large.
        data: blobs that hold input data, and the block of the captured graph that each is.
    """

    layers: tuple[NetLayer, ...]
    blob_bytes: tuple[int, ...]
    data: dict[int, int]


def read_net(graph: TaskGraph, library: LayerLibrary) -> Net:
    """Read the forward pass of a captured training step.

    Raises:
        UnsupportedModel: a layer that the framework does not have; names it.
    """
    reader = _Reader(graph, library)
    for layer in graph.forward_layers:
        reader.read(layer)
    return _assign_blobs(reader)


class _Reader:
    """Reads layers whose inputs and outputs are values: each is written once."""

    def __init__(self, graph: TaskGraph, library: LayerLibrary) -> None:
        self._graph = graph
        self._library = library
        self._value_in: dict[int, int] = {}  # a captured block -> the value that it holds now
        self.layers: list[NetLayer] = []
        self.value_bytes: list[int] = []
        self.data: dict[int, int] = {}
        for block in graph.blocks:
            if block.role is Role.INPUT:
                self._value_in[block.index] = self._new_value(block.size_bytes)
                self.data[self._value_in[block.index]] = block.index

    def read(self, layer: LayerTasks) -> None:
        name = self._graph.layers[layer.layer]
        layer_type = self._library.type_of(layer, name)
        inputs = self._inputs(layer, layer_type, name)
        if layer_type is self._library.loss:
            self._read_losses(layer, name, inputs)
            return
        block = self._output_block(layer, name)
        size_bytes = self._graph.blocks[block].size_bytes
        if layer_type.vanishes_at_same_size and size_bytes == self.value_bytes[inputs[0]]:
            self._value_in[block] = inputs[0]
            return
        weights = self._read_blocks(layer, Role.WEIGHT)
        second, taken = self._second_part(layer_type, weights)
        convolution = next((task.convolution for task in layer.tasks if task.convolution), None)
        copies = self._library.groups if convolution and convolution.groups > 1 else None
        if copies:
            inputs = (self._add(f"{name}:{copies[0].name}", copies[0], inputs, self.value_bytes[inputs[0]]),)
        output = self._add(
            name,
            layer_type,
            inputs,
            size_bytes,
            weights=tuple(weight for weight in weights if weight not in taken),
            statistics=self._read_blocks(layer, Role.BUFFER),
            operations=sum(task.operations for task in layer.tasks),
            convolution=convolution,
            channel_bytes=min(self._graph.blocks[kept].size_bytes for kept in layer.creates)
            if layer_type.keeps_per_channel
            else 0,
            window=_window(layer) if layer_type.window_passes else 0,
        )
        if copies:
            output = self._add(f"{name}:{copies[1].name}", copies[1], (output,), size_bytes)
        if second is not None:
            output = self._add(f"{name}:{second.name}", second, (output,), size_bytes, weights=taken)
        self._value_in[block] = output

    def _second_part(self, layer_type: LayerType, weights: tuple[int, ...]) -> tuple[LayerType | None, tuple[int, ...]]:
        """Return the layer that the framework adds behind this one, if it does, and the weights that go to it."""
        if layer_type.kind is Kind.BATCH_NORM and weights:
            return self._library.scale, weights if self._library.scale else ()
        if layer_type.kind in (Kind.CONVOLUTION, Kind.LINEAR) and self._library.bias:
            return (self._library.bias, weights[1:]) if len(weights) > 1 else (None, ())
        return None, ()

    def _add(self, name: str, layer_type: LayerType, inputs: tuple[int, ...], size_bytes: int, **facts: Any) -> int:
        """Add a layer and return its output."""
        output = self._new_value(size_bytes)
        self.layers.append(NetLayer(name, layer_type, inputs, output, **facts))
        return output

    def _read_losses(self, layer: LayerTasks, name: str, logits: tuple[int, ...]) -> None:
        """Read one loss layer for each classifier, auxiliary ones included."""
        labels = self._read_blocks(layer, Role.LABEL)
        for number, value in enumerate(logits, start=1):
            loss_name = name if number == 1 else f"{name}{number}"
            self._add(loss_name, self._library.loss, (value,), 4, labels=labels)

    def _inputs(self, layer: LayerTasks, layer_type: LayerType, name: str) -> tuple[int, ...]:
        """Return the values that a layer reads; a sum that adds a value to itself reads it twice."""
        made_here = layer.creates
        blocks = [b for task in layer.tasks for b in task.reads if b not in made_here]
        if layer_type.kind in (Kind.ADD, Kind.CONCATENATE):
            [task] = layer.tasks
            assert task.call is not None
            blocks = [value.block for value in values_in(task.call.args)]
        else:
            blocks = list(dict.fromkeys(blocks))
        values = []
        for block in blocks:
            if block in self._value_in:
                values.append(self._value_in[block])
            elif self._graph.blocks[block].role not in EXTERNAL_ROLES:
                cause = f"it reads {self._graph.blocks[block].name!r}, an internal result of another layer"
                raise UnsupportedModel(name, cause, "choose framework=pytorch")
        if not values:
            raise UnsupportedModel(name, "it does not depend on the input", "choose framework=pytorch")
        return tuple(values)

    def _output_block(self, layer: LayerTasks, name: str) -> int:
        for task in reversed(layer.tasks):
            for block in task.writes:
                if self._graph.blocks[block].role not in EXTERNAL_ROLES:
                    return block
        raise UnsupportedModel(name, "it has no output", "choose framework=pytorch")

    def _read_blocks(self, layer: LayerTasks, role: Role) -> tuple[int, ...]:
        return tuple(b for b in sorted(layer.reads) if self._graph.blocks[b].role is role)

    def _new_value(self, size_bytes: int) -> int:
        self.value_bytes.append(size_bytes)
        return len(self.value_bytes) - 1


def _window(layer: LayerTasks) -> int:
    """Return the numbers in a window of a pooling."""
    [call] = [task.call for task in layer.tasks if task.call is not None]
    _, kernel_size, *_ = call.args
    return prod(kernel_size)


def _assign_blobs(reader: _Reader) -> Net:
    readers = Counter(value for layer in reader.layers for value in layer.inputs)
    needs_output = {
        layer.output for layer in reader.layers if layer.type.reads_output and not layer.type.may_be_in_place
    }
    blob_of: dict[int, int] = {}
    blob_bytes: list[int] = []

    def add_blob(value: int) -> None:
        blob_of[value] = len(blob_bytes)
        blob_bytes.append(reader.value_bytes[value])

    for value in reader.data:
        add_blob(value)
    layers = []
    for layer in reader.layers:
        source = layer.inputs[0]
        is_exclusive = readers[source] == 1 and source not in reader.data and source not in needs_output
        if layer.type.may_be_in_place and is_exclusive:
            blob_of[layer.output] = blob_of[source]
        else:
            add_blob(layer.output)
        inputs = tuple(blob_of[value] for value in layer.inputs)
        layers.append(replace(layer, inputs=inputs, output=blob_of[layer.output]))
    return Net(tuple(layers), tuple(blob_bytes), {blob_of[value]: block for value, block in reader.data.items()})
