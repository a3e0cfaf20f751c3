"""Caffe: the network as blobs and layers, the way Layrub's baseline keeps it.

What is kept follows Caffe's published layers:

- every layer that is not in place has a data blob and a gradient blob of the same size; batch norm, scale, ReLU and
  dropout write onto their input where nobody else reads it (Layrub's network definitions);
- a blob with several readers passes a Split: one gradient per reader, and their sum;
- a batch norm keeps its normalised output and a full-size map of standard deviations; a scale in place keeps a copy of its input; max pooling keeps an index, dropout a random number, LRN a
  scale for each output; the softmax loss keeps its probabilities;
- weights have a gradient and a momentum for the whole run; each convolution has workspace and library handles.
"""

from collections import Counter
from typing import ClassVar

from membench.frameworks.base import Efficiency, Framework
from membench.frameworks.caffe_net import CONVOLUTION_WORKSPACE_BYTES, Net, NetLayer, read_net
from membench.task_graph import Block, GradientOf, Kind, Phase, Role, Task, TaskGraph

_WITH_WEIGHTS = frozenset({Kind.CONVOLUTION, Kind.LINEAR})


class Caffe(Framework):
    """BVLC Caffe over cuDNN, as calibrated by `membench.calibrate`.

    Args:
        context_bytes: what the process holds on the device before any blob.
        handles_bytes: cuDNN handles, streams and descriptors of each convolution.
    """

    name: ClassVar[str] = "caffe"

    def __init__(self, efficiency: Efficiency, context_bytes: int, handles_bytes: int) -> None:
        self.efficiency = efficiency
        self._context_bytes = context_bytes
        self._handles_bytes = handles_bytes

    def lower(self, graph: TaskGraph) -> TaskGraph:
        net = read_net(graph)
        writer = _GraphWriter(net)
        for position in range(len(net.layers)):
            writer.forward(position)
        for position in reversed(range(len(net.layers))):
            writer.backward(position)
        convolutions = sum(layer.kind is Kind.CONVOLUTION for layer in net.layers)
        overhead_bytes = self._context_bytes + convolutions * self._handles_bytes
        return TaskGraph(
            name=graph.name,
            batch_size=graph.batch_size,
            blocks=tuple(writer.blocks),
            tasks=tuple(writer.tasks),
            layers=tuple(layer.name for layer in net.layers),
            overhead_bytes=overhead_bytes,
        )


class _GraphWriter:
    """Writes the forward and backward tasks of a net, layer by layer."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.blocks: list[Block] = []
        self.tasks: list[Task] = []
        self._data: dict[int, int] = {}  # blob -> block
        self._inside: dict[tuple[int, str], int] = {}  # layer, what it keeps -> block
        self._weights: dict[str, tuple[int, int]] = {}  # weight -> its block and its gradient's
        self._gradients: dict[int, list[int]] = {}  # blob -> gradients that its readers have written
        self._readers = Counter(
            blob for layer in net.layers if not layer.is_in_place for blob in layer.inputs
        )

    # ---- forward ------------------------------------------------------------------------------------

    def forward(self, position: int) -> None:
        layer = self._net.layers[position]
        self._add_weights(layer)
        inputs = [self._data[blob] for blob in layer.inputs]
        weights = [self._weights[name][0] for name in layer.weights]
        inside = [self._keep(position, what, size) for what, size in layer.inside]
        created = list(inside)
        if layer.is_in_place:
            output = inputs[0]
        else:
            role = Role.LOSS if layer.kind is Kind.LOSS else Role.ACTIVATION
            output = self._block(layer.name, self._net.blob_bytes[layer.output], role, position)
            self._data[layer.output] = output
            created.append(output)
        phase = Phase.LOSS if layer.kind is Kind.LOSS else Phase.FORWARD
        self._task(position, layer.name, phase, reads=[*inputs, *weights], writes=[output, *inside], creates=created)

    def _keep(self, position: int, what: str, size_bytes: int) -> int:
        block = self._block(f"{self._net.layers[position].name}:{what}", size_bytes, Role.INTERNAL, position)
        self._inside[position, what] = block
        return block

    def _add_weights(self, layer: NetLayer) -> None:
        """Weights, their gradients and their momentum stay for the whole run, so they are the caller's."""
        for name, size_bytes in layer.weights.items():
            if name not in self._weights:
                weight = self._block(name, size_bytes, Role.WEIGHT, -1)
                gradient = self._block(f"{name}:gradient", size_bytes, Role.OPTIMIZER_STATE, -1)
                self._block(f"{name}:momentum", size_bytes, Role.OPTIMIZER_STATE, -1)
                self._weights[name] = weight, gradient
        for name, size_bytes in layer.statistics.items():
            self._block(name, size_bytes, Role.BUFFER, -1)

    # ---- backward -----------------------------------------------------------------------------------

    def backward(self, position: int) -> None:
        layer = self._net.layers[position]
        if layer.kind is Kind.OTHER:  # the data layer
            return
        gradient = self._merge(position, layer.output)
        inside = [self._inside[position, what] for what, _ in layer.inside if what not in layer.scratch]
        saved = inside + [self._data[blob] for blob in layer.saved]
        received = [] if gradient is None else [gradient]
        if layer.kind in _WITH_WEIGHTS:
            self._weight_gradient(position, reads=received + saved)
            saved = [self._weights[name][0] for name in layer.weights]
        elif layer.weights:  # a batch norm's scale: its weights' gradients come with the data's
            saved += [self._weights[name][1] for name in layer.weights]
        self._data_gradient(position, reads=received + saved, gradient=gradient)

    def _merge(self, position: int, blob: int) -> int | None:
        """Return the gradient of a layer's output: the only reader's, or what a Split sums up."""
        gradients = self._gradients.get(blob, [])
        if len(gradients) > 1:
            total = self._block(f"{self._net.layers[position].name}:split", self._net.blob_bytes[blob], Role.GRADIENT, position)
            self._task(
                position, f"{self._net.layers[position].name}:split", Phase.BACKWARD, Kind.ADD,
                reads=gradients, writes=[total], creates=[total],
            )  # fmt: skip
            self._gradients[blob] = [total]
            return total
        return gradients[0] if gradients else None

    def _weight_gradient(self, position: int, reads: list[int]) -> None:
        layer = self._net.layers[position]
        gradients = [self._weights[name][1] for name in layer.weights]
        self._task(
            position, f"{layer.name}:weight gradient", Phase.BACKWARD,
            reads=reads, writes=gradients, creates=[], gradient_of=GradientOf.WEIGHT,
        )  # fmt: skip

    def _data_gradient(self, position: int, reads: list[int], gradient: int | None) -> None:
        layer = self._net.layers[position]
        if layer.is_in_place:
            assert gradient is not None
            writes, created = [gradient], []
        else:
            created = []
            for blob in layer.inputs:
                if self._net.needs_gradient[blob]:
                    name = f"{self._net.blob_names[blob]}:gradient for {layer.name}"
                    created.append(self._block(name, self._net.blob_bytes[blob], Role.GRADIENT, position))
                    self._gradients.setdefault(blob, []).append(created[-1])
            if not created:
                return
            writes = created
        self._task(
            position, f"{layer.name}:data gradient", Phase.BACKWARD,
            reads=reads, writes=writes, creates=created, gradient_of=GradientOf.DATA,
        )  # fmt: skip

    # ---- records ------------------------------------------------------------------------------------

    def _block(self, name: str, size_bytes: int, role: Role, layer: int) -> int:
        self.blocks.append(Block(len(self.blocks), name, size_bytes, role, layer))
        return len(self.blocks) - 1

    def _task(
        self,
        position: int,
        name: str,
        phase: Phase,
        kind: Kind | None = None,
        *,
        reads: list[int],
        writes: list[int],
        creates: list[int],
        gradient_of: GradientOf | None = None,
    ) -> None:
        layer = self._net.layers[position]
        kind = kind or layer.kind
        updated = [block for block in writes if block not in creates and self.blocks[block].role is not Role.OPTIMIZER_STATE]
        all_reads = tuple(dict.fromkeys([*reads, *updated]))
        self.tasks.append(
            Task(
                index=len(self.tasks),
                name=name,
                kind=kind,
                phase=phase,
                layer=position,
                reads=all_reads,
                writes=tuple(dict.fromkeys(writes)),
                creates=tuple(creates),
                operations=layer.operations if kind in _WITH_WEIGHTS else 0,
                workspace_bytes=_backward_workspace(layer, phase),
                moved_bytes=sum(self.blocks[block].size_bytes for block in (*all_reads, *writes)),
                gradient_of=gradient_of,
            )
        )


def _backward_workspace(layer: NetLayer, phase: Phase) -> int:
    """The convolution's workspace again: network-wide allocation still has it, others gave it back."""
    return CONVOLUTION_WORKSPACE_BYTES if layer.kind is Kind.CONVOLUTION and phase is Phase.BACKWARD else 0
