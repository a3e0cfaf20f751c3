"""vDNN: virtualised deep neural networks (Rhu et al., arXiv 1602.08124v2).

Layer-wise memory: a layer's input (X) is offloaded to pinned host memory while the layer runs, and prefetched shortly
before the backward pass needs it (Sections 3.1 and 3.2). The policy chooses the X to offload, and each convolution runs
with the fastest algorithm (p) or with one that needs no workspace (m):

- `VdnnAll`: the X of every layer of feature extraction; the least memory.
- `VdnnConv`: the X of convolutions alone, whose long running time hides the copy.
- `VdnnDyn` (3.3): before training, tries plans from the fastest to the smallest, and steps single convolutions down to
  slower algorithms where memory is short.

A layer that writes in place has no X of its own. Classifier layers are not managed; in a transformer they are those
after the last layer norm (`feature_layers`), and linear layers and attention hide the copies. The paper describes
linear networks; where several layers read an activation, the last of them offloads it and it is prefetched for the
first that needs it in the backward pass. Not Layrub, which prefetches for the next layer only and puts gradients where
activations were; not moDNN, which plans copies across layers.
"""

from collections.abc import Sequence
from enum import StrEnum

from membench.core.checks import choice
from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.schedule import Compute, Free, Prefetch, Schedule
from membench.core.graph.task_graph import Kind, LayerTasks, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.units import parse_bytes
from membench.planning.algorithms import Preference, choose_algorithms, prefer
from membench.planning.builder import ScheduleBuilder
from membench.planning.memory.liveness import live_bytes
from membench.planning.uses import last_touched, saved_for_backward
from membench.strategies.base import Strategy
from membench.strategies.cnmem_pool import CnmemPool


class Policy(StrEnum):
    """The layers whose inputs are offloaded (Section 3.3)."""

    NONE = "none"
    CONV = "conv"
    ALL = "all"


class _Virtualized(Strategy):
    """A method that offloads the inputs of layers.

    Args:
        pool: memory of a device that one pool takes, "12 GB", the weights included (`CnmemPool`); None: memory is held
            on demand.

    Raises:
        MembenchError: that is not a size.
    """

    def __init__(self, pool: str | int | None = None) -> None:
        self._pool_bytes = None if pool is None else parse_bytes(pool)

    def _new_pool(self, graph: TaskGraph) -> CnmemPool | None:
        return None if self._pool_bytes is None else CnmemPool(max(0, self._pool_bytes - graph.external_bytes))

    def _offload(self, graph: TaskGraph, budget_bytes: int | None, policy: Policy) -> Schedule:
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, pool=self._new_pool(graph))
        offloads = _Offloads(graph, policy)
        _forward(builder, offloads)
        _backward(builder, offloads)
        return builder.finish()


class _StaticPolicy(_Virtualized):
    """A method with one policy.

    Args:
        algorithms: `Preference.MEMORY` (m) or `Preference.PERFORMANCE` (p), for all convolutions.
    """

    def __init__(self, algorithms: Preference = Preference.PERFORMANCE, pool: str | int | None = None) -> None:
        super().__init__(pool)
        self._algorithms = choice(Preference, "algorithms", algorithms)


class VdnnAll(_StaticPolicy):
    """vDNN_all: offload the inputs of every feature-extraction layer (Rhu et al., Sections 3.1 to 3.3)."""

    name = "vdnn_all"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return self._offload(prefer(graph, cost, self._algorithms), budget_bytes, Policy.ALL)


class VdnnConv(_StaticPolicy):
    """vDNN_conv: offload the inputs of convolutions only (Rhu et al., Sections 3.1 to 3.3)."""

    name = "vdnn_conv"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        return self._offload(prefer(graph, cost, self._algorithms), budget_bytes, Policy.CONV)


class VdnnDyn(_Virtualized):
    """vDNN_dyn: the first of the paper's trials that keeps the budget, or without a budget the fastest (Section 3.3).

    Args:
        policies: tried in this order; with a single policy only the algorithms are dynamic.
    """

    name = "vdnn_dyn"

    def __init__(self, policies: Sequence[Policy] = tuple(Policy), pool: str | int | None = None) -> None:
        super().__init__(pool)
        self._policies = tuple(choice(Policy, "policies", policy) for policy in policies)
        if not self._policies:
            raise UnsupportedStrategy(f"vdnn_dyn needs at least one policy; choose from {', '.join(Policy)}")

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        smallest = prefer(graph, cost, Preference.MEMORY)
        last_resort = self._offload(smallest, budget_bytes, Policy.ALL)
        fastest = prefer(graph, cost, Preference.PERFORMANCE)
        for policy in self._policies:
            if schedule := self._try(fastest, budget_bytes, policy):
                return schedule
        assert budget_bytes is not None, "the first trial fits where there is no budget"
        for policy in (policy for policy in self._policies if policy is not Policy.NONE):
            downgraded = self._downgrade(smallest, cost, budget_bytes, policy)
            if schedule := self._try(downgraded, budget_bytes, policy):
                return schedule
        return last_resort

    def _try(self, graph: TaskGraph, budget_bytes: int | None, policy: Policy) -> Schedule | None:
        try:
            return self._offload(graph, budget_bytes, policy)
        except InfeasibleSchedule:
            return None

    def _downgrade(self, smallest: TaskGraph, cost: CostModel, budget_bytes: int, policy: Policy) -> TaskGraph:
        """Give each convolution the fastest algorithm for which there is room where it runs."""
        room_bytes = self._room_bytes(self._offload(smallest, None, policy), budget_bytes)
        return choose_algorithms(
            smallest,
            cost,
            lambda task, algorithms: next(
                (option for option in algorithms if option.workspace_bytes <= room_bytes[task.index]),
                min(algorithms, key=lambda option: option.workspace_bytes),
            ),
        )

    def _room_bytes(self, trial: Schedule, budget_bytes: int) -> dict[int, int]:
        """Return by task the largest workspace for which there is room: in the budget, and in one piece of the pool."""
        graph, held_bytes, room_bytes = trial.graph, live_bytes(trial), {}
        pool = self._new_pool(graph)
        address: dict[int, int] = {}
        for held, item in zip(held_bytes, trial.instructions, strict=True):
            match item:
                case Compute(task):
                    new = graph.tasks[task].creates
                case Prefetch(block):
                    new = (block,)
                case _:
                    new = ()
            if pool:
                address |= {block: pool.allocate(graph.blocks[block].size_bytes) for block in new}
            if pool and isinstance(item, Free):
                pool.free(address.pop(item.block), graph.blocks[item.block].size_bytes)
            if isinstance(item, Compute):
                room = budget_bytes - held + graph.tasks[item.task].workspace_bytes
                room_bytes[item.task] = min(room, pool.largest_free_bytes) if pool else room
        return room_bytes


class _Offloads:
    """The inputs that each forward layer offloads, and the search for those to prefetch."""

    def __init__(self, graph: TaskGraph, policy: Policy) -> None:
        self._layers = graph.forward_layers
        self._position = {layer.layer: position for position, layer in enumerate(self._layers)}
        self.inputs = _inputs_of_features(graph, policy)
        self._offloading = [position for position, blocks in enumerate(self.inputs) if blocks]
        self._window = _nearest_long_layers(self._layers, len(feature_layers(graph)))

    def position(self, layer: LayerTasks, *, before: int) -> int:
        """Return a backward layer's position in the forward pass; `before` for a layer that was not part of it."""
        return self._position.get(layer.layer, before)

    def find_prefetch_layer(self, position: int) -> list[int]:
        """Return the inputs of the nearest earlier layer that offloaded any, unless prefetched already (Figure 8).

        The search ends at the nearest convolution: inputs of layers further back would be prefetched too early. Where
        features are extracted without convolutions (a transformer's encoder), it ends at the nearest linear layer or
        attention.
        """
        while self._offloading and self._offloading[-1] >= position:
            self._offloading.pop()
        if self._offloading and self._offloading[-1] >= self._window[position]:
            return self.inputs[self._offloading.pop()]
        return []


def _nearest_long_layers(layers: Sequence[LayerTasks], features: int) -> list[int]:
    """Return for each position, and the one after the last, that of the nearest long layer before it, or 0.

    Args:
        features: number of layers of feature extraction, which are the first ones.
    """
    convolutions = [i for i, layer in enumerate(layers) if layer.has_kind(Kind.CONVOLUTION)]
    encoder = range(convolutions[-1] + 1 if convolutions else 0, features)
    window = [0]
    for position, layer in enumerate(layers):
        kinds = (Kind.LINEAR, Kind.ATTENTION) if position in encoder else (Kind.CONVOLUTION,)
        window.append(position if layer.has_kind(*kinds) else window[-1])
    return window


def _inputs_of_features(graph: TaskGraph, policy: Policy) -> list[list[int]]:
    """Return for each forward layer the X that it offloads under the policy."""
    layers = graph.forward_layers
    needed = saved_for_backward(graph) if policy is not Policy.NONE else set()
    if policy is Policy.CONV:
        needed &= {b for layer in layers if layer.has_kind(Kind.CONVOLUTION) for b in layer.reads}
    features = {layer.layer for layer in feature_layers(graph)}
    return [
        [block for block in last if layer.layer in features and block not in layer.writes]
        for layer, last in zip(layers, last_touched(layers, needed), strict=True)
    ]


def _forward(builder: ScheduleBuilder, offloads: _Offloads) -> None:
    """Offload a layer's inputs while it runs; the next layer waits for a late copy (Figure 7)."""
    for layer, inputs in zip(builder.graph.forward_layers, offloads.inputs, strict=True):
        for block in inputs:
            builder.offload(block)
        _compute_layer(builder, layer, synchronize=bool(inputs))
        for block in inputs:
            builder.free(block)


def _backward(builder: ScheduleBuilder, offloads: _Offloads) -> None:
    """Prefetch what a layer reads, and ahead what an earlier layer of the forward pass offloaded (Figures 7 and 8)."""
    position = len(offloads.inputs)
    for layer in builder.graph.backward_layers:
        position = offloads.position(layer, before=position)
        wanted = [*sorted(layer.reads), *offloads.find_prefetch_layer(position)]
        fetched = [b for b in dict.fromkeys(wanted) if builder.is_offloaded(b) and not builder.is_dead(b)]
        for block in fetched:
            builder.prefetch(block)
        _compute_layer(builder, layer, synchronize=bool(fetched))


def _compute_layer(builder: ScheduleBuilder, layer: LayerTasks, *, synchronize: bool) -> None:
    """Run a layer's tasks, and release what is dead at its end, not between its gradients (Section 3.2)."""
    for task in layer.tasks:
        builder.compute(task)
    if synchronize:
        builder.synchronize()
    builder.free_dead()


FEATURE_KINDS = (Kind.CONVOLUTION, Kind.POOLING, Kind.ATTENTION, Kind.NORMALIZATION)
"""Layers that a classifier does not have: it consists of linear layers, activations, dropout and batch norm."""


def feature_layers(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    """Return the forward layers up to the last one that a classifier does not have; what follows is the classifier.

    In the paper's networks that is the last pooling, in a transformer the last layer norm.
    """
    layers = graph.forward_layers
    found = [i for i, layer in enumerate(layers) if layer.has_kind(*FEATURE_KINDS)]
    return layers[: found[-1] + 1] if found else ()
