"""Encoded activations: what methods that compress activations between the two passes share.

    between the layers                                     alongside a ReLU, on a stream of its own

    forward:   compute the last layer that reads it        compute a convolution, the last layer that reads it
               encode, free                                encode  alongside  the convolution's ReLU
               compute the next layer                      free
    backward:  compute the layer before                    decode  alongside  the gradient of that ReLU
               decode                                      compute the gradients of the convolution
               compute the first layer that reads it

The method chooses the activations, their codecs, and whether it uses the pairs of a convolution and its ReLU. Other
activations are encoded between the layers in any case.
"""

from collections import defaultdict
from collections.abc import Mapping

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import COMPUTE_STREAM, Schedule
from membench.core.graph.task_graph import Kind, LayerTasks, Phase, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.encoding import add_encoded_forms, encoded_bytes, float32_activations
from membench.planning.uses import first_touched, last_touched
from membench.strategies.on_demand import compute_on_demand

Density = float | Mapping[int, float]
"""The largest fraction of non-zeros to plan for, of all activations or by block (1 for other blocks)."""

MEASURED = "measured"
"""The density of a cell that measures densities on its model; see `membench.sweep.cells.method`."""

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
        name: the strategy's name.
        graph: annotated.
        codecs: by the activation's block; see `encodable_activations`.
        stream: codecs' stream alongside ReLUs; the compute stream: all activations are encoded between the layers.
    """
    densities = {block: density_of(density, block) for block in codecs}
    graph, forms = add_encoded_forms(graph, codecs, densities)
    builder = ScheduleBuilder(name, graph, budget_bytes=budget_bytes)
    _forward(builder, forms, codecs, stream)
    _backward(builder, forms, stream)
    return builder.finish()


def _forward(
    builder: ScheduleBuilder, forms: Mapping[int, int], codecs: Mapping[int, ActivationCodec], stream: str
) -> None:
    """Encode what a convolution was the last to read alongside its ReLU, and anything else at once."""

    def encode(blocks: list[int], stream: str) -> None:
        for block in blocks:
            builder.encode(block, forms[block], codecs[block], stream=stream)

    def free(blocks: list[int]) -> None:
        for block in blocks:
            builder.free(block)

    layers = builder.graph.forward_layers
    postponed: list[int] = []
    for layer, following, done in zip(layers, [*layers[1:], None], last_touched(layers, forms), strict=True):
        encode(postponed, stream)
        compute_on_demand(builder, layer.tasks)
        free(postponed)
        has_relu = following is not None and _are_pair(layer, following, Kind.CONVOLUTION, Kind.RELU)
        postponed = done if stream != COMPUTE_STREAM and has_relu else []
        if not postponed:
            encode(done, COMPUTE_STREAM)
            free(done)


def _backward(builder: ScheduleBuilder, forms: Mapping[int, int], stream: str) -> None:
    """Decode what a convolution reads first alongside the gradient of its ReLU, and all else just before its use."""

    def decode(blocks: list[int], stream: str) -> None:
        for block in blocks:
            builder.decode(block, stream=stream)

    layers = builder.graph.backward_layers
    needed = first_touched(layers, forms)
    ahead = False
    for layer, following, now, then in zip(layers, [*layers[1:], None], needed, [*needed[1:], []], strict=True):
        if not ahead:
            decode(now, COMPUTE_STREAM)
        has_relu = following is not None and _are_pair(layer, following, Kind.RELU, Kind.CONVOLUTION)
        ahead = stream != COMPUTE_STREAM and has_relu
        if ahead:
            decode(then, stream)
        compute_on_demand(builder, layer.tasks)


def _are_pair(first: LayerTasks, second: LayerTasks, *kinds: Kind) -> bool:
    """Return whether two layers are of these kinds and the second reads what the first wrote."""
    of_kinds = first.has_kind(kinds[0]) and second.has_kind(kinds[1])
    return of_kinds and not first.writes.isdisjoint(second.reads)


def encodable_activations(graph: TaskGraph) -> list[int]:
    """Return the blocks of sparse activations that the backward pass reads and that may be rounded.

    Sparse are results of a ReLU, and of pooling, dropout and concatenation of such results. They may be rounded where
    only convolutions and inner products (gradients of their weights), ReLUs (the sign) and pooling read them: there a
    rounded value is a rounded factor, while in the gradient of a normalisation a small error may become a large one.
    Left out is what the last layer of the forward pass touches, which would be decoded at once.
    """
    sparse = _sparse_activations(graph)
    readers: defaultdict[int, set[Kind]] = defaultdict(set)
    for layer in graph.backward_layers:
        for task in layer.tasks:
            for block in sparse.intersection(task.reads):
                readers[block].add(task.kind)
    at_the_end = graph.forward_layers[-1].touches if graph.forward_layers else frozenset()
    return [block for block in sorted(readers) if readers[block] <= _LINEAR_READERS and block not in at_the_end]


def worth_encoding(graph: TaskGraph, codec: ActivationCodec, density: Density) -> dict[int, ActivationCodec]:
    """Return the codec for each encodable activation that it makes smaller."""
    return {
        block: codec
        for block in encodable_activations(graph)
        if encoded_bytes(graph.blocks[block], codec, density_of(density, block)) < graph.blocks[block].size_bytes
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
