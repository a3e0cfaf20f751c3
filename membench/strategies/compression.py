"""Encoded activations: what methods that compress activations between the two passes share.

    _alongside_layers (on a stream of its own)             _between_layers (on the compute stream)

    forward:   compute the last layer that reads it        compute the last layer that reads it
               encode  alongside  the next layer           encode, free
               free                                        compute the next layer
    backward:  decode  alongside  the layer before         compute the layer before
               compute the first layer that reads it       decode
                                                           compute the first layer that reads it

The method chooses the activations and their codecs.
"""

from collections import defaultdict
from collections.abc import Mapping

from membench.core.codec import ActivationCodec
from membench.core.errors import UnsupportedStrategy
from membench.core.schedule import COMPUTE_STREAM, Schedule
from membench.core.task_graph import Kind, Phase, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.encoding import add_encoded_forms, encoded_bytes, float32_activations
from membench.planning.uses import first_touched, last_touched
from membench.strategies.on_demand import compute_on_demand

Density = float | Mapping[int, float]
"""The largest fraction of non-zeros that is planned for: one for all activations, or by block (1 for any other block)."""

MEASURED = "measured"
"""The density of a cell that measures densities on its model; see `membench.sweep.method`."""

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
    """Return a schedule in which activations are encoded between the two passes.

    Args:
        name: of the strategy.
        graph: annotated.
        codecs: by the activation's block; see `encodable_activations`.
        stream: of the codecs.
    """
    densities = {block: density_of(density, block) for block in codecs}
    graph, forms = add_encoded_forms(graph, codecs, densities)
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes)
    if stream == COMPUTE_STREAM:
        _between_layers(builder, forms, codecs)
    else:
        _alongside_layers(builder, forms, codecs, stream)
    return builder.finish()


def _between_layers(
    builder: ScheduleBuilder, forms: Mapping[int, int], codecs: Mapping[int, ActivationCodec]
) -> None:
    """Encode and decode on the compute stream, after a layer and before a layer."""
    layers = builder.graph.forward_layers
    for layer, done in zip(layers, last_touched(layers, forms), strict=True):
        compute_on_demand(builder, layer.tasks)
        for block in done:
            builder.encode(block, forms[block], codecs[block], stream=COMPUTE_STREAM)
        for block in done:
            builder.free(block)
    layers = builder.graph.backward_layers
    for layer, needed in zip(layers, first_touched(layers, forms), strict=True):
        for block in needed:
            builder.decode(block, stream=COMPUTE_STREAM)
        compute_on_demand(builder, layer.tasks)


def _alongside_layers(
    builder: ScheduleBuilder, forms: Mapping[int, int], codecs: Mapping[int, ActivationCodec], stream: str
) -> None:
    """Encode and decode on a stream of their own, each alongside one layer of the compute stream."""
    layers = builder.graph.forward_layers
    encoding: list[int] = []
    for layer, done in zip(layers, last_touched(layers, forms), strict=True):
        for block in encoding:
            builder.encode(block, forms[block], codecs[block], stream=stream)
        compute_on_demand(builder, layer.tasks)
        for block in encoding:
            builder.free(block)
        encoding = done
    layers = builder.graph.backward_layers
    at_once, *ahead = first_touched(layers, forms)
    for block in at_once:
        builder.decode(block, stream=stream)
    for layer, needed_next in zip(layers, [*ahead, []], strict=True):
        for block in needed_next:
            builder.decode(block, stream=stream)
        compute_on_demand(builder, layer.tasks)


def encodable_activations(graph: TaskGraph) -> list[int]:
    """Return the blocks of sparse activations that the backward pass reads and that may be rounded.

    Sparse are results of a ReLU, and of pooling, dropout and concatenation of such results. They may be rounded where only
    convolutions and inner products (gradients of their weights), ReLUs (the sign) and pooling read them: there a rounded
    value is a rounded factor, while in the gradient of a normalisation a small error may become a large one. Left out is
    what the last layer of the forward pass touches, which would be decoded at once.
    """
    sparse = _sparse_activations(graph)
    readers: defaultdict[int, set[Kind]] = defaultdict(set)
    for layer in graph.backward_layers:
        for task in layer.tasks:
            for block in sparse.intersection(task.reads):
                readers[block].add(task.kind)
    at_the_end = graph.forward_layers[-1].touches if graph.forward_layers else frozenset()
    return [
        block for block in sorted(readers) if readers[block] <= _LINEAR_READERS and block not in at_the_end
    ]


def worth_encoding(graph: TaskGraph, codec: ActivationCodec, density: Density) -> dict[int, ActivationCodec]:
    """Return the codec for each encodable activation that it makes smaller."""
    return {
        block: codec
        for block in encodable_activations(graph)
        if encoded_bytes(graph.blocks[block], codec, density_of(density, block))
        < graph.blocks[block].size_bytes
    }


def check_density(density: Density) -> Density:
    """Return a valid density.

    Raises:
        UnsupportedStrategy: it is not a number from 0 to 1.
    """
    if isinstance(density, Mapping) or (isinstance(density, int | float) and 0 <= density <= 1):
        return density
    raise UnsupportedStrategy(
        f"a density is a number from 0 to 1, not {density!r}; {MEASURED!r} is for single steps (membench run)"
    )


def density_of(density: Density, block: int) -> float:
    """Return the density that is planned for a block."""
    return density.get(block, 1.0) if isinstance(density, Mapping) else density


def _sparse_activations(graph: TaskGraph) -> set[int]:
    """Return the float32 activations whose zeros come from a ReLU, at the end of the forward pass."""
    sparse: set[int] = set()
    for task in graph.tasks:
        if task.phase is Phase.FORWARD:
            change = sparse.update if _makes_zeros(task, sparse) else sparse.difference_update
            change(task.writes)
    return sparse & float32_activations(graph)


def _makes_zeros(task: Task, sparse: set[int]) -> bool:
    keeps = task.kind in _KEEP_ZEROS and bool(task.reads) and sparse.issuperset(task.reads)
    return task.kind is Kind.RELU or keeps
