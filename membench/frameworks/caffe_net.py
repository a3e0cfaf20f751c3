"""A captured graph read as a Caffe network: layers in order, the blobs between them, what is in place."""

from collections import Counter
from dataclasses import dataclass, field

from membench.errors import UnsupportedModel
from membench.task_graph import EXTERNAL_ROLES, Kind, LayerTasks, Role, TaskGraph
from membench.units import MIB

CONVOLUTION_WORKSPACE_BYTES = 3 * 8 * MIB
"""Caffe's cuDNN convolution allows 8 MiB for each of its three streams, and keeps them per layer."""

_IN_PLACE_KINDS = frozenset({Kind.BATCH_NORM, Kind.RELU, Kind.DROPOUT})


@dataclass(frozen=True)
class NetLayer:
    """One Caffe layer.

    Attributes:
        inputs, output: blobs; in place, the output is the first input.
        weights, statistics: bytes by name.
        inside: (what, bytes) that the layer keeps beside its blobs from the forward pass on.
        scratch: those of `inside` that the backward pass does not read.
        saved: blobs whose data the backward pass reads.
        operations: of one pass (forward, weight gradient and data gradient take the same).
    """

    name: str
    kind: Kind
    inputs: tuple[int, ...]
    output: int
    is_in_place: bool
    weights: dict[str, int]
    statistics: dict[str, int]
    inside: tuple[tuple[str, int], ...]
    scratch: frozenset[str]
    saved: tuple[int, ...]
    operations: int


@dataclass
class Net:
    layers: list[NetLayer] = field(default_factory=list)
    blob_bytes: list[int] = field(default_factory=list)
    blob_names: list[str] = field(default_factory=list)
    needs_gradient: list[bool] = field(default_factory=list)

    def add_blob(self, name: str, size_bytes: int, *, needs_gradient: bool) -> int:
        self.blob_bytes.append(size_bytes)
        self.blob_names.append(name)
        self.needs_gradient.append(needs_gradient)
        return len(self.blob_bytes) - 1


def read_net(graph: TaskGraph) -> Net:
    """Read the forward pass of a captured training step as a Caffe network.

    Raises:
        UnsupportedModel: a layer that Caffe does not have; names it.
    """
    reader = _Reader(graph)
    for layer in graph.forward_layers:
        reader.read(layer)
    return reader.net


class _Reader:
    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self.net = Net()
        self._blob_of: dict[int, int] = {}  # a captured block -> the blob that holds its contents now
        self._touches = Counter(block for layer in graph.forward_layers for block in layer.touches)
        for block in graph.blocks:
            if block.role is Role.INPUT:
                self._add_data(block.index)

    def _add_data(self, block: int) -> None:
        blob = self.net.add_blob("data", self._graph.blocks[block].size_bytes, needs_gradient=False)
        self._blob_of[block] = blob
        self._add("data", Kind.OTHER, (), blob)

    def read(self, layer: LayerTasks) -> None:
        name = self._graph.layers[layer.layer]
        kind = self._kind(layer)
        inputs = [block for task in layer.tasks for block in task.reads if block in self._blob_of]
        blobs = tuple(self._blob_of[block] for block in dict.fromkeys(inputs))
        if kind is Kind.LOSS:
            self._read_loss(name, blobs)
            return
        output = self._output_of(layer)
        size_bytes = self._graph.blocks[output].size_bytes
        if kind is Kind.POOLING and size_bytes == self.net.blob_bytes[blobs[0]]:
            self._blob_of[output] = blobs[0]  # pools to the size it has: Caffe's networks have no such layer
            return
        # In place only where nobody else reads what would be overwritten.
        exclusive = inputs[0] == output or self._touches[inputs[0]] <= 2
        if kind in _IN_PLACE_KINDS and exclusive:
            blob = blobs[0]
        else:
            blob = self.net.add_blob(name, size_bytes, needs_gradient=True)
        self._blob_of[output] = blob
        self._add(name, kind, blobs, blob, layer)

    def _output_of(self, layer: LayerTasks) -> int:
        """Return the block that later layers know as this layer's output: the last that it writes of the largest."""
        written = [b for task in layer.tasks for b in task.writes if self._graph.blocks[b].role not in EXTERNAL_ROLES]
        later = [block for block in written if self._touches[block] > 1]
        if not later:
            raise UnsupportedModel(
                self._graph.layers[layer.layer], "nothing reads its output", "remove it, or use framework=pytorch"
            )
        return max(reversed(later), key=lambda block: self._graph.blocks[block].size_bytes)

    def _kind(self, layer: LayerTasks) -> Kind:
        operators = " ".join(task.call.operator for task in layer.tasks if task.call is not None)
        kinds = {task.kind for task in layer.tasks}
        if layer.tasks[0].phase == "loss":
            return Kind.LOSS
        if "aten.pow" in operators and "aten.div" in operators:
            return Kind.NORMALIZATION  # local response normalisation, several operators in torch
        for kind in (Kind.CONVOLUTION, Kind.LINEAR, Kind.BATCH_NORM, Kind.RELU, Kind.DROPOUT, Kind.POOLING):
            if kind in kinds:
                return kind
        for kind in (Kind.CONCATENATE, Kind.ADD):
            if kind in kinds:
                return kind
        if "constant_pad_nd" in operators:
            return Kind.CONCATENATE  # zero channels beside the input's (ResNet's parameter-free shortcut)
        raise UnsupportedModel(
            self._graph.layers[layer.layer], f"Caffe has no layer for {operators}", "use framework=pytorch"
        )

    def _read_loss(self, name: str, logits: tuple[int, ...]) -> None:
        """One softmax loss per output: the main one and the auxiliary ones."""
        for number, blob in enumerate(dict.fromkeys(logits)):
            loss = self.net.add_blob(f"{name}{number or ''}", 4, needs_gradient=False)
            inside = (("probabilities", self.net.blob_bytes[blob]),)
            self._add(f"{name}{number or ''}", Kind.LOSS, (blob,), loss, inside=inside)

    def _add(
        self,
        name: str,
        kind: Kind,
        inputs: tuple[int, ...],
        output: int,
        layer: LayerTasks | None = None,
        inside: tuple[tuple[str, int], ...] = (),
    ) -> None:
        blocks = self._graph.blocks
        read = sorted(layer.reads) if layer else []
        size_bytes = self.net.blob_bytes[output]
        in_place = output in inputs
        operators = " ".join(t.call.operator for t in layer.tasks if t.call is not None) if layer else ""
        kept, scratch = _inside(kind, operators, size_bytes, in_place)
        self.net.layers.append(
            NetLayer(
                name=name,
                kind=kind,
                inputs=inputs,
                output=output,
                is_in_place=in_place,
                weights={blocks[b].name: blocks[b].size_bytes for b in read if blocks[b].role is Role.WEIGHT},
                statistics={blocks[b].name: blocks[b].size_bytes for b in read if blocks[b].role is Role.BUFFER},
                inside=inside or kept,
                scratch=scratch,
                saved=_saved(kind, inputs, output),
                operations=sum(t.operations for t in layer.tasks) if layer else 0,
            )
        )


def _inside(
    kind: Kind, operators: str, size_bytes: int, in_place: bool
) -> tuple[tuple[tuple[str, int], ...], frozenset[str]]:
    """Return what a layer keeps beside its blobs, and which of that its backward does not read."""
    nothing: frozenset[str] = frozenset()
    if kind is Kind.CONVOLUTION:
        return (("workspace", CONVOLUTION_WORKSPACE_BYTES),), frozenset({"workspace"})
    if kind is Kind.BATCH_NORM:
        # x_norm_ (normalised) and temp_ (standard deviations at full size, read again by the backward); and, in
        # place, the Scale layer's temp_, a copy of its input. A fourth map, the gradient of x_norm_, would leave
        # less than nothing for handles in Caffe's rows of Table 6.
        kept = [("normalized", size_bytes), ("deviations", size_bytes)]
        if in_place:
            kept.append(("scale input", size_bytes))
        return tuple(kept), nothing
    if kind is Kind.POOLING and "max_pool" in operators:
        return (("index", size_bytes),), nothing
    if kind is Kind.DROPOUT:
        return (("random numbers", size_bytes),), nothing
    if kind is Kind.NORMALIZATION:
        return (("scale", size_bytes),), nothing
    return (), nothing


def _saved(kind: Kind, inputs: tuple[int, ...], output: int) -> tuple[int, ...]:
    match kind:
        case Kind.CONVOLUTION | Kind.LINEAR:
            return inputs
        case Kind.RELU:
            return (output,)
        case Kind.NORMALIZATION:
            return (inputs[0], output)
        case _:
            return ()
