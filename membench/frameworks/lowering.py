"""A training step written from a network of a framework's layers, as Caffe and Torch run it.

- A layer that is not in place has a data blob and a gradient blob of the same size; one that is in place writes onto
  its input's blob, and its gradient onto its gradient.
- A blob with several readers gets a gradient from each; their sum is a layer of its own, with a gradient of its own.
- A layer may instead hand on the gradient that it receives, or write onto it.
- Internal blocks of layers follow from their types.
- A weight's gradient and its other states stay for the whole run; so these are external blocks. A gradient that does
  not stay is freed with the task that computes it, because its update follows at once.

The tasks have no calls: such a graph can only be simulated.
"""

from collections import Counter
from dataclasses import replace

from membench.core.graph.call import Value
from membench.core.graph.task_graph import Block, GradientOf, Kind, Phase, Role, Task, TaskGraph
from membench.frameworks.layers import LayerLibrary
from membench.frameworks.net import Net, NetLayer, read_net


def lower_layers(graph: TaskGraph, library: LayerLibrary) -> TaskGraph:
    """Return the tasks and blocks of a framework of layers for a captured training step.

    Raises:
        UnsupportedModel: the framework does not have one of the layers; names it.
    """
    net = read_net(graph, library)
    writer = _GraphWriter(graph, net, library)
    for position in range(len(net.layers)):
        writer.forward(position)
    for position in reversed(range(len(net.layers))):
        writer.backward(position)
    return writer.graph()


class _GraphWriter:
    """Writes the tasks of a net, layer by layer, and the blocks that they need."""

    def __init__(self, captured: TaskGraph, net: Net, library: LayerLibrary) -> None:
        self._captured = captured
        self._net = net
        self._library = library
        self._names = [layer.name for layer in net.layers]
        self._blocks: list[Block] = []
        self._tasks: list[Task] = []
        self._trained = {name for name, gradient in captured.gradients if gradient is not None}
        self._written: set[int] = set()  # blocks with contents, external ones included
        self._external: dict[int, int] = {}  # a captured block -> its block here
        self._weight_gradient: dict[int, int] = {}  # a weight's block -> its gradient's
        self._kept: dict[tuple[int, str], int] = {}  # (layer, name) -> block
        self._readers = Counter(blob for layer in net.layers if not layer.is_in_place for blob in layer.inputs)
        self._gradients: dict[int, list[int]] = {}  # blob -> gradients from its readers
        self._shared: set[int] = set()  # gradients that belong to several blobs
        self._data = {blob: self._external_block(block) for blob, block in net.data.items()}
        self._needs_gradient = self._find_needs_gradient()

    def graph(self) -> TaskGraph:
        return TaskGraph(
            name=self._captured.name,
            batch_size=self._captured.batch_size,
            blocks=tuple(self._blocks),
            tasks=tuple(self._tasks),
            layers=tuple(self._names),
            gradients=self._gradients_of_weights(),
        )

    def _gradients_of_weights(self) -> tuple[tuple[str, Value | None], ...]:
        """Return the value of each weight's gradient; none where the framework does not keep them."""
        kept = {self._blocks[weight].name: block for weight, block in self._weight_gradient.items()}
        return tuple(
            (name, value and replace(value, block=kept[name], offset=0))
            for name, value in self._captured.gradients
            if value is None or name in kept
        )

    # ---- forward ------------------------------------------------------------------------------------

    def forward(self, position: int) -> None:
        layer = self._net.layers[position]
        weights = [self._external_block(block) for block in layer.weights]
        biases = [weights.pop() for _ in weights[1:]] if layer.type.bias_kernels else []
        external = [*weights, *(self._external_block(block) for block in (*layer.statistics, *layer.labels))]
        statistics = [self._external_block(block) for block in layer.statistics]
        inputs = [self._data[blob] for blob in layer.inputs]
        full_bytes = self._full_bytes(layer)
        kept = [self._keep(position, what, full_bytes) for what in layer.keeps]
        kept += [self._keep(position, what, layer.channel_bytes) for what in layer.type.keeps_per_channel]
        is_loss = layer.type.kind is Kind.LOSS
        if not layer.is_in_place:
            role = Role.LOSS if is_loss else Role.ACTIVATION
            size_bytes = self._net.blob_bytes[layer.output]
            self._data[layer.output] = self._add_block(f"{layer.name}:data", size_bytes, role, position)
        self._add_task(
            position,
            layer.name,
            Phase.LOSS if is_loss else Phase.FORWARD,
            reads=[*inputs, *external],
            writes=[*statistics, *kept, self._data[layer.output]],
            moved_bytes=self._forward_bytes(layer),
        )
        if biases:
            output = self._data[layer.output]
            name = f"{layer.name}:bias"
            self._add_task(position, name, Phase.FORWARD, reads=[output, *biases], writes=[output], kind=Kind.OTHER)

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
        needs_data = any(self._needs_gradient[blob] for blob in layer.inputs)
        updated = self._weight_gradients(position)
        if layer.type.bias_kernels and (biases := updated[1:]):
            updated = updated[:1]
            name = f"{layer.name}:bias gradient"
            self._add_task(
                position,
                name,
                Phase.BACKWARD,
                reads=received,
                writes=biases,
                kind=Kind.OTHER,
                gradient_of=GradientOf.BIAS,
            )
        if updated and (layer.type.parameters_first or not needs_data):
            self._add_task(
                position,
                f"{layer.name}:weight gradient",
                Phase.BACKWARD,
                reads=received + saved,
                writes=updated,
                gradient_of=GradientOf.WEIGHT,
                moved_bytes=layer.type.parameter_passes * self._full_bytes(layer),
            )
            updated = []
        reads = received + (weights if layer.type.parameters_first else saved + weights)
        if not needs_data:
            return
        if gradient is not None and self._may_overwrite(layer, gradient):
            self._gradient_in_place(position, gradient, reads, updated)
        else:
            self._gradients_of_inputs(position, gradient, reads, updated)

    def _weight_gradients(self, position: int) -> list[int]:
        """Return the blocks of the gradients of a layer's weights; new ones if they do not stay."""
        layer = self._net.layers[position]
        trained = [self._external[block] for block in layer.weights]
        trained = [weight for weight in trained if self._blocks[weight].name in self._trained]
        if self._library.keeps_weight_gradients:
            return [self._weight_gradient[weight] for weight in trained]
        return [
            self._add_block(f"{block.name}:gradient", block.size_bytes, Role.INTERNAL, position)
            for block in (self._blocks[weight] for weight in trained)
        ]

    def _saved(self, position: int) -> list[int]:
        """Return the blocks of the forward pass that a layer's backward pass reads."""
        layer = self._net.layers[position]
        saved = [self._kept[position, what] for what in (*layer.keeps, *layer.type.keeps_per_channel)]
        if layer.type.reads_input and not layer.is_in_place:
            saved += [self._data[blob] for blob in layer.inputs]
        if layer.type.reads_output:
            saved.append(self._data[layer.output])
        return saved + [self._external[block] for block in layer.labels]

    def _merged_gradient(self, position: int, blob: int) -> int | None:
        """Return the gradient of a blob: its only reader's, or the sum of several."""
        gradients = self._gradients.pop(blob, [])
        if len(gradients) < 2:
            return gradients[0] if gradients else None
        name = f"{self._net.layers[position].name}:{self._library.sum_name}"
        self._names.append(name)
        layer = len(self._names) - 1
        own = [gradient for gradient in gradients if gradient not in self._shared]
        if self._library.sums_in_place and own:
            total = own[0]
        else:
            total = self._add_block(f"{name}:gradient", self._net.blob_bytes[blob], Role.GRADIENT, layer)
        passes = 3 * (len(gradients) - 1) if self._library.sums_pairwise else 0
        moved_bytes = passes * self._net.blob_bytes[blob]
        self._add_task(
            layer, name, Phase.BACKWARD, reads=gradients, writes=[total], kind=Kind.ADD, moved_bytes=moved_bytes
        )
        return total

    def _may_overwrite(self, layer: NetLayer, gradient: int) -> bool:
        return (layer.is_in_place or layer.type.gradient_in_place) and gradient not in self._shared

    def _gradient_in_place(self, position: int, gradient: int, reads: list[int], updated: list[int]) -> None:
        layer = self._net.layers[position]
        full_bytes = self._full_bytes(layer)
        scratch = [self._keep(position, what, full_bytes) for what in layer.type.scratch_in_place]
        self._add_task(
            position,
            f"{layer.name}:data gradient",
            Phase.BACKWARD,
            reads=reads,
            writes=[gradient, *scratch, *updated],
            gradient_of=GradientOf.DATA,
            moved_bytes=layer.type.data_passes * full_bytes,
        )
        self._gradients.setdefault(layer.inputs[0], []).append(gradient)

    def _gradients_of_inputs(self, position: int, gradient: int | None, reads: list[int], updated: list[int]) -> None:
        """Write a gradient for each input in a task of its own; sums and concatenations copy one after another."""
        layer = self._net.layers[position]
        copies = layer.type.kind in (Kind.ADD, Kind.CONCATENATE)
        if gradient is not None and layer.type.forwards_gradient_to > 1:
            self._shared.add(gradient)
        for number, blob in enumerate(layer.inputs):
            if not self._needs_gradient[blob]:
                continue
            if gradient is not None and number < layer.type.forwards_gradient_to:
                self._gradients.setdefault(blob, []).append(gradient)
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
                writes=[block, *updated],
                gradient_of=GradientOf.DATA,
                moved_bytes=2 * size_bytes if copies else self._data_bytes(layer, size_bytes),
            )

    def _find_needs_gradient(self) -> list[bool]:
        """Return for each blob whether it depends on a trained weight."""
        needs = [False] * len(self._net.blob_bytes)
        for layer in self._net.layers:
            names = {self._captured.blocks[block].name for block in layer.weights}
            if names & self._trained or any(needs[blob] for blob in layer.inputs):
                needs[layer.output] = True
        return needs

    # ---- records ------------------------------------------------------------------------------------

    def _external_block(self, captured: int) -> int:
        """Return the block that stays for the whole run; a trained weight brings its gradient and other states."""
        if captured not in self._external:
            block = self._captured.blocks[captured]
            index = self._external[captured] = len(self._blocks)
            self._blocks.append(replace(block, index=index, layer=-1))
            if block.role is Role.WEIGHT and block.name in self._trained:
                role = Role.OPTIMIZER_STATE
                if self._library.keeps_weight_gradients:
                    name = f"{block.name}:gradient"
                    self._weight_gradient[index] = self._add_block(name, block.size_bytes, role, -1)
                for state in self._library.weight_states:
                    self._add_block(f"{block.name}:{state}", block.size_bytes, role, -1)
            self._written.update(range(index, len(self._blocks)))
        return self._external[captured]

    def _full_bytes(self, layer: NetLayer) -> int:
        """Return the full size of a layer: its output's, or its logits' where the output is a loss."""
        blob = layer.inputs[0] if layer.type.kind is Kind.LOSS else layer.output
        return self._net.blob_bytes[blob]

    def _forward_bytes(self, layer: NetLayer) -> int:
        """Return the bytes that a layer's forward pass moves; 0: those of its blobs."""
        full_bytes = self._full_bytes(layer)
        if passes := layer.type.window_passes:
            return passes.forward_bytes(full_bytes, layer.window)
        return layer.type.forward_passes * full_bytes

    def _data_bytes(self, layer: NetLayer, input_bytes: int) -> int:
        """Return the bytes that a layer's data gradient moves; 0: those of its blobs."""
        full_bytes = self._full_bytes(layer)
        if passes := layer.type.window_passes:
            return passes.backward_bytes(input_bytes, full_bytes, layer.window)
        return layer.type.data_passes * full_bytes

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
        kind: Kind | None = None,
        gradient_of: GradientOf | None = None,
        moved_bytes: int = 0,
    ) -> None:
        """Add a task; it creates the written blocks that are new, and updates, so also reads, the others.

        Args:
            kind: the kind of a task beside the layer's own kernels; None: the layer's.
        """
        created = [block for block in dict.fromkeys(writes) if block not in self._written]
        self._written.update(created)
        layer = self._net.layers[position] if kind is None else None
        all_reads = dict.fromkeys([*reads, *(block for block in writes if block not in created)])
        touched = sum(self._blocks[block].size_bytes for block in (*all_reads, *writes))
        self._tasks.append(
            Task(
                index=len(self._tasks),
                name=name,
                kind=layer.type.kind if layer else kind or Kind.OTHER,
                phase=phase,
                layer=position,
                reads=tuple(all_reads),
                writes=tuple(dict.fromkeys(writes)),
                creates=tuple(created),
                operations=layer.operations if layer else 0,
                convolution=layer.convolution if layer else None,
                moved_bytes=moved_bytes or touched,
                gradient_of=gradient_of,
                random=phase is Phase.FORWARD and layer is not None and layer.type.kind is Kind.DROPOUT,
            )
        )
