"""Maps that wait for the backward pass in encoded form: what methods that compress activations do alike.

    forward:   run(last layer that reads the map)      backward:   ...
               encode(map)                                         decode(map)
               run(next layer)                                     run(layer before)
               free(map)                                           run(first layer that reads the map)

On the compute stream itself nothing runs beside: the map is freed before the next layer, and decoded after the layer
before. Which maps, and by which codecs, is the method's matter.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from membench.core.codec import ActivationCodec
from membench.core.errors import UnsupportedStrategy
from membench.core.schedule import COMPUTE_STREAM, Schedule
from membench.core.task_graph import Kind, LayerTasks, Phase, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.encoding import add_encoded_forms, encoded_bytes, floating_maps
from membench.strategies.on_demand import compute_on_demand

Density = float | Mapping[int, float]
"""The largest fraction of non-zeros that is planned for: of every map, or by the map's block (1 where it names none)."""

MEASURED = "measured"
"""Asks a cell for densities that are measured on its model; see `membench.sweep.method`."""

_KEEP_ZEROS = frozenset({Kind.POOLING, Kind.DROPOUT, Kind.CONCATENATE})
_LINEAR_READERS = frozenset({Kind.CONVOLUTION, Kind.LINEAR, Kind.RELU, Kind.POOLING})


def compress(
    name: str,
    graph: TaskGraph,
    budget_bytes: int | None,
    codecs: Mapping[int, ActivationCodec],
    density: Density,
    *,
    stream: str,
) -> Schedule:
    """Return a schedule in which maps are encoded between the two passes.

    Args:
        codecs: by the map's block; see `encodable_maps`.
        stream: of the codecs.
    """
    densities = {block: density_of(density, block) for block in codecs}
    graph, forms = add_encoded_forms(graph, codecs, densities)
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes)
    beside = stream != COMPUTE_STREAM

    leaving = _by_position(graph.forward_layers, codecs, last=True)
    for position, layer in enumerate(graph.forward_layers):
        blocks = leaving[position - 1]
        for block in blocks:
            builder.encode(block, forms[block], codecs[block], stream=stream)
        if not beside:
            _free(builder, blocks)
        compute_on_demand(builder, layer.tasks)
        if beside:
            _free(builder, blocks)

    wanted = _by_position(graph.backward_layers, codecs, last=False)
    for position, layer in enumerate(graph.backward_layers):
        early = wanted[position + 1] if beside else []
        for block in (*wanted[position], *early):
            if builder.is_encoded(block):
                builder.decode(block, stream=stream)
        compute_on_demand(builder, layer.tasks)
    return builder.finish()


def encodable_maps(graph: TaskGraph) -> list[int]:
    """Return the blocks of maps that a ReLU made sparse, or pooling and the like of such maps, and the backward pass reads.

    Read for convolutions and inner products (the gradients of their weights), for ReLUs (the sign) and for pooling: there
    a rounded value is a rounded factor, while in the gradient of a normalisation a small error may become a large one.
    What the forward pass reads in its last layer would be decoded at once, and is left out.
    """
    sparse = _sparse_maps(graph)
    readers: defaultdict[int, set[Kind]] = defaultdict(set)
    for layer in graph.backward_layers:
        for task in layer.tasks:
            for block in sparse.intersection(task.reads):
                readers[block].add(task.kind)
    at_the_end = graph.forward_layers[-1].touches if graph.forward_layers else frozenset()
    return [
        block for block in sorted(readers) if readers[block] <= _LINEAR_READERS and block not in at_the_end
    ]


def worth_encoding(
    graph: TaskGraph, blocks: Iterable[int], codec: ActivationCodec, density: Density
) -> dict[int, ActivationCodec]:
    """Return a codec for each map that it makes smaller."""
    return {
        block: codec
        for block in blocks
        if encoded_bytes(graph.blocks[block], codec, density_of(density, block))
        < graph.blocks[block].size_bytes
    }


def checked(density: Density) -> Density:
    """Return a density that room can be made for.

    Raises:
        UnsupportedStrategy: it is none.
    """
    if isinstance(density, Mapping) or (isinstance(density, int | float) and 0 <= density <= 1):
        return density
    raise UnsupportedStrategy(
        f"a density is a number from 0 to 1, not {density!r}; {MEASURED!r} is for single steps (python -m membench)"
    )


def density_of(density: Density, block: int) -> float:
    return density.get(block, 1.0) if isinstance(density, Mapping) else density


def _sparse_maps(graph: TaskGraph) -> set[int]:
    """Return the float32 maps of which a ReLU put the zeros there, at the end of the forward pass."""
    sparse: set[int] = set()
    for task in graph.tasks:
        if task.phase is Phase.FORWARD:
            change = sparse.update if _makes_zeros(task, sparse) else sparse.difference_update
            change(task.writes)
    return sparse & floating_maps(graph)


def _makes_zeros(task: Task, sparse: Collection[int]) -> bool:
    keeps = task.kind in _KEEP_ZEROS and bool(task.reads) and all(block in sparse for block in task.reads)
    return task.kind is Kind.RELU or keeps


def _by_position(
    layers: Sequence[LayerTasks], blocks: Iterable[int], *, last: bool
) -> defaultdict[int, list[int]]:
    """Return which of these blocks are touched last, or else first, at each position."""
    wanted = frozenset(blocks)
    positions: dict[int, int] = {}
    for position, layer in enumerate(layers):
        for block in layer.touches & wanted:
            if last or block not in positions:
                positions[block] = position
    found: defaultdict[int, list[int]] = defaultdict(list)
    for block, position in sorted(positions.items()):
        found[position].append(block)
    return found


def _free(builder: ScheduleBuilder, blocks: Iterable[int]) -> None:
    for block in blocks:
        builder.free(block)
