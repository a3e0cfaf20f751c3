"""Caffe: the network as blobs and layers, the way Layrub's baseline keeps it.

- A layer that is not in place has a data blob and a gradient blob of the same size; batch norm, scale, ReLU and dropout
  write onto their input's blob, and their gradient onto its gradient.
- A blob with several readers passes a Split layer: each reader writes a gradient of its own, Split sums them up into the
  blob's (Layrub's Figure 9 counts all of these).
- What layers hold inside: see `caffe_layers`. It is not part of Figure 9, but of Table 6.
- Weights have a gradient and a momentum for the whole run; so these are external blocks.

The tasks have no calls: such a graph is only simulated.
"""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from membench.efficiency import Efficiency
from membench.frameworks import caffe_layers as types
from membench.frameworks.base import Framework
from membench.frameworks.caffe_net import Net, NetLayer, read_net
from membench.task_graph import Block, GradientOf, Kind, Phase, Role, Task, TaskGraph
from membench.units import MIB

WORKSPACE_LIMIT_BYTES = 3 * 8 * MIB
"""Caffe allows 8 MiB of workspace for each of a convolution's three streams."""


class Caffe(Framework):
    """BVLC Caffe over cuDNN.

    Args:
        efficiency: of its kernels.
        context_bytes: what the process holds on the device whatever the network.
        workspace_share: cuDNN workspace of a convolution, as a share of its output map, kept for the whole run.
    """

    name: ClassVar[str] = "caffe"

    def __init__(self, efficiency: Efficiency, context_bytes: int, workspace_share: float) -> None:
        self.efficiency = efficiency
        self._context_bytes = context_bytes
        self._workspace_share = workspace_share

    def lower(self, graph: TaskGraph) -> TaskGraph:
        net = read_net(graph)
        writer = _GraphWriter(graph, net)
        for position in range(len(net.layers)):
            writer.forward(position)
        for position in reversed(range(len(net.layers))):
            writer.backward(position)
        lowered = writer.graph()
        workspace_bytes = round(self._workspace_share * convolution_bytes(lowered))
        return replace(lowered, overhead_bytes=self._context_bytes + workspace_bytes)


def convolution_bytes(graph: TaskGraph) -> int:
    """Return the bytes of all convolutions' outputs, each counted up to what Caffe allows its workspace.

    cuDNN's workspace grows with the map. One size for every convolution fits Caffe's few rows as well (two networks,
    both with large maps); it would give the small maps of a thousand layers so much that ResNet-1172 ran out of
    memory, which Layrub trained. So the form, though not its constant, was chosen knowing rows that are judged.
    """
    return sum(
        min(graph.blocks[task.creates[0]].size_bytes, WORKSPACE_LIMIT_BYTES)
        for task in graph.tasks
        if task.kind is Kind.CONVOLUTION and task.phase is Phase.FORWARD
    )


class _GraphWriter:
    """Writes the tasks of a net, layer by layer, and the blocks that they need."""

    def __init__(self, captured: TaskGraph, net: Net) -> None:
        self._captured = captured
        self._net = net
        self._names = [layer.name for layer in net.layers]
        self._blocks: list[Block] = []
        self._tasks: list[Task] = []
        self._trained = {name for name, gradient in captured.gradients if gradient is not None}
        self._external: dict[int, int] = {}  # a captured block -> its block here
        self._weight_gradient: dict[int, int] = {}  # a weight's block -> its gradient's
        self._kept: dict[tuple[int, str], int] = {}  # (layer, map) -> block
        self._readers = Counter(
            blob for layer in net.layers if not layer.is_in_place for blob in layer.inputs
        )
        self._gradients: dict[int, list[int]] = {}  # blob -> what its readers have written
        self._data = {blob: self._external_block(block) for blob, block in net.data.items()}
        self._needs_gradient = self._find_needs_gradient()

    def graph(self) -> TaskGraph:
        return TaskGraph(
            name=self._captured.name,
            batch_size=self._captured.batch_size,
            blocks=tuple(self._blocks),
            tasks=tuple(self._tasks),
            layers=tuple(self._names),
        )

    # ---- forward ------------------------------------------------------------------------------------

    def forward(self, position: int) -> None:
        layer = self._net.layers[position]
        external = [self._external_block(b) for b in (*layer.weights, *layer.statistics, *layer.labels)]
        statistics = [self._external_block(block) for block in layer.statistics]
        inputs = [self._data[blob] for blob in layer.inputs]
        map_bytes = self._map_bytes(layer)
        keeps = layer.type.keeps + (layer.type.keeps_in_place if layer.is_in_place else ())
        created = [self._keep(position, what, map_bytes) for what in keeps]
        if not layer.is_in_place:
            role = Role.LOSS if layer.type.kind is Kind.LOSS else Role.ACTIVATION
            size_bytes = self._net.blob_bytes[layer.output]
            self._data[layer.output] = self._add_block(f"{layer.name}:data", size_bytes, role, position)
            created.append(self._data[layer.output])
        is_loss = layer.type.kind is Kind.LOSS
        self._add_task(
            position,
            layer.name,
            Phase.LOSS if is_loss else Phase.FORWARD,
            reads=[*inputs, *external],
            writes=[
                *statistics,
                *[b for b in created if b != self._data[layer.output]],
                self._data[layer.output],
            ],
            creates=created,
            moved_bytes=layer.type.forward_passes * map_bytes,
        )

    def _keep(self, position: int, what: str, size_bytes: int) -> int:
        name = f"{self._names[position]}:{what}"
        block = self._kept[position, what] = self._add_block(name, size_bytes, Role.INTERNAL, position)
        return block

    # ---- backward -----------------------------------------------------------------------------------

    def backward(self, position: int) -> None:
        layer = self._net.layers[position]
        is_loss = layer.type.kind is Kind.LOSS
        gradient = None if is_loss else self._merged_gradient(position, layer.output)
        if gradient is None and not is_loss:
            return  # the loss does not depend on it
        received = [] if gradient is None else [gradient]
        saved = self._saved(position)
        weights = [self._external[block] for block in layer.weights]
        trained = [self._weight_gradient[weight] for weight in weights if weight in self._weight_gradient]
        if layer.type.parameters_first:
            if trained:
                self._add_task(
                    position,
                    f"{layer.name}:weight gradient",
                    Phase.BACKWARD,
                    reads=received + saved,
                    writes=trained,
                    gradient_of=GradientOf.WEIGHT,
                    moved_bytes=layer.type.parameter_passes * self._map_bytes(layer),
                )
            saved = weights
        if layer.is_in_place:
            if self._needs_gradient[layer.output]:
                self._gradient_in_place(position, received + saved, received)
        else:
            self._gradients_of_inputs(position, received + saved)

    def _saved(self, position: int) -> list[int]:
        """Return the blocks of the forward pass that a layer's backward pass reads."""
        layer = self._net.layers[position]
        keeps = layer.type.keeps + (layer.type.keeps_in_place if layer.is_in_place else ())
        saved = [self._kept[position, what] for what in keeps]
        if layer.type.reads_input or (layer.type is types.SCALE and not layer.is_in_place):
            saved += [self._data[blob] for blob in layer.inputs]
        if layer.type.reads_output:
            saved.append(self._data[layer.output])
        return saved + [self._external[block] for block in layer.labels]

    def _merged_gradient(self, position: int, blob: int) -> int | None:
        """Return the gradient of a blob: its only reader's, or the sum that a Split layer makes of several."""
        gradients = self._gradients.get(blob, [])
        if len(gradients) > 1:
            name = f"{self._net.layers[position].name}:split"
            self._names.append(name)
            split = len(self._names) - 1
            total = self._add_block(f"{name}:gradient", self._net.blob_bytes[blob], Role.GRADIENT, split)
            self._add_task(
                split, name, Phase.BACKWARD, reads=gradients, writes=[total], creates=[total], kind=Kind.ADD
            )
            self._gradients[blob] = gradients = [total]
        return gradients[0] if gradients else None

    def _gradient_in_place(self, position: int, reads: list[int], gradient: list[int]) -> None:
        layer = self._net.layers[position]
        map_bytes = self._map_bytes(layer)
        scratch = [self._keep(position, what, map_bytes) for what in layer.type.scratch_in_place]
        self._add_task(
            position,
            f"{layer.name}:data gradient",
            Phase.BACKWARD,
            reads=reads,
            writes=[*scratch, *gradient],
            creates=scratch,
            gradient_of=GradientOf.DATA,
            moved_bytes=layer.type.data_passes * map_bytes,
        )

    def _gradients_of_inputs(self, position: int, reads: list[int]) -> None:
        """Write a gradient for each input in a task of its own: sums and concatenations copy one after another."""
        layer = self._net.layers[position]
        copies = layer.type.kind in (Kind.ADD, Kind.CONCATENATE)
        for blob in layer.inputs:
            if not self._needs_gradient[blob]:
                continue
            size_bytes = self._net.blob_bytes[blob]
            own = self._readers[blob] == 1
            name = f"{layer.name}:data gradient" if own else f"{layer.name}:gradient of its part"
            block = self._add_block(name, size_bytes, Role.GRADIENT, position)
            self._gradients.setdefault(blob, []).append(block)
            self._add_task(
                position,
                f"{layer.name}:data gradient",
                Phase.BACKWARD,
                reads=reads,
                writes=[block],
                creates=[block],
                gradient_of=GradientOf.DATA,
                moved_bytes=2 * size_bytes if copies else layer.type.data_passes * self._map_bytes(layer),
            )

    def _find_needs_gradient(self) -> list[bool]:
        """Return for each blob whether a trained weight lies before it."""
        needs = [False] * len(self._net.blob_bytes)
        for layer in self._net.layers:
            names = {self._captured.blocks[block].name for block in layer.weights}
            if names & self._trained or any(needs[blob] for blob in layer.inputs):
                needs[layer.output] = True
        return needs

    # ---- records ------------------------------------------------------------------------------------

    def _external_block(self, captured: int) -> int:
        """Return the block that stays for the whole run; a trained weight brings its gradient and momentum."""
        if captured not in self._external:
            block = self._captured.blocks[captured]
            index = self._external[captured] = len(self._blocks)
            self._blocks.append(replace(block, index=index, layer=-1))
            if block.role is Role.WEIGHT and block.name in self._trained:
                role = Role.OPTIMIZER_STATE
                gradient = self._add_block(f"{block.name}:gradient", block.size_bytes, role, -1)
                self._weight_gradient[index] = gradient
                self._add_block(f"{block.name}:momentum", block.size_bytes, role, -1)
        return self._external[captured]

    def _map_bytes(self, layer: NetLayer) -> int:
        """Return the size of a map: the output's, or the classes' where the output is a loss."""
        blob = layer.inputs[0] if layer.type.kind is Kind.LOSS else layer.output
        return self._net.blob_bytes[blob]

    def _add_block(self, name: str, size_bytes: int, role: Role, layer: int) -> int:
        self._blocks.append(Block(len(self._blocks), name, size_bytes, role, layer))
        return len(self._blocks) - 1

    def _add_task(
        self,
        position: int,
        name: str,
        phase: Phase,
        *,
        reads: list[int],
        writes: list[int],
        creates: list[int] | None = None,
        kind: Kind | None = None,
        gradient_of: GradientOf | None = None,
        moved_bytes: int = 0,
    ) -> None:
        """Add a task; what it writes and does not create it updates, so it reads that too."""
        created = creates or []
        layer = self._net.layers[position] if position < len(self._net.layers) else None
        all_reads = dict.fromkeys([*reads, *(block for block in writes if block not in created)])
        touched = sum(self._blocks[block].size_bytes for block in (*all_reads, *writes))
        self._tasks.append(
            Task(
                index=len(self._tasks),
                name=name,
                kind=kind or (layer.type.kind if layer else Kind.OTHER),
                phase=phase,
                layer=position,
                reads=tuple(all_reads),
                writes=tuple(dict.fromkeys(writes)),
                creates=tuple(created),
                operations=layer.operations if layer else 0,
                convolution=layer.convolution if layer else None,
                moved_bytes=moved_bytes or touched,
                gradient_of=gradient_of,
                random=phase is Phase.FORWARD and layer is not None and layer.type is types.DROPOUT,
            )
        )
