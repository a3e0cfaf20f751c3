"""The combinations of options with which a step can run on several GPUs, enumerated."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from membench.core.step.pipeline import PIPELINED
from membench.core.step.sharding import SHARDED
from membench.models.checkpointing import Checkpointing
from membench.steps.parallel.context_parallel import AXIS as CONTEXT
from membench.steps.parallel.division import Division
from membench.steps.parallel.expert_parallel import AXIS as EXPERTS
from membench.steps.parallel.ranks import AXES, SHARDING
from membench.steps.parallel.tensor_parallel import AXIS as TENSOR

ROUNDS = 4
"""Rounds of micro-batches through a pipeline if the batch is not given: its bubble is at most a fifth of the time."""

Axes = tuple[tuple[str, int], ...]
"""Names and sizes of axes, the outermost first."""


@dataclass(frozen=True)
class Combination:
    """One way to run a step on several GPUs.

    Attributes:
        axes: names and sizes; see `membench.predict` (``parallel``). Their product is the number of GPUs.
        reshard_after_forward: see `membench.predict`; true where weights are not sharded.
        micro_batch: samples of one GPU at a time.
        accumulate: micro-batches of a step.
    """

    axes: Axes
    reshard_after_forward: bool
    checkpointing: Checkpointing
    micro_batch: int
    accumulate: int = 1

    @property
    def parallel(self) -> dict[str, int]:
        """The axes of more than one GPU, by name."""
        return {name: size for name, size in self.axes if size > 1}

    @property
    def shards(self) -> int:
        """GPUs over which weights are in shards."""
        return prod(self.parallel.get(axis, 1) for axis in SHARDING)

    @property
    def stages(self) -> int:
        """GPUs over which the module is cut into stages."""
        return self.parallel.get(PIPELINED, 1)

    @property
    def division(self) -> Division:
        """What is divided before the step is captured: products, sequences, and experts. It has no plan."""
        tensor, context, experts = (self.parallel.get(axis, 1) for axis in (TENSOR, CONTEXT, EXPERTS))
        return Division(tensor, context, experts)

    @property
    def sharing(self) -> int:
        """GPUs that share samples: the stages of a pipeline, and those that divide products or sequences."""
        return prod(self.parallel.get(axis, 1) for axis in (PIPELINED, CONTEXT, TENSOR))

    @property
    def global_batch(self) -> int:
        """Samples of all GPUs in a step."""
        data_parallel = prod(size for _, size in self.axes) // self.sharing
        return self.micro_batch * self.accumulate * data_parallel

    @property
    def samples(self) -> float:
        """Samples in a step for each GPU: a part of one where several share it."""
        return self.micro_batch * self.accumulate / self.sharing


def factorisations(number: int, axes: Sequence[str]) -> Iterator[Axes]:
    """Yield each choice of axes' sizes whose product is a number, the largest size of the last axis first."""
    first, *others = axes
    if not others:
        yield ((first, number),)
        return
    for size in range(1, number + 1):
        if number % size == 0:
            yield from (((first, size), *rest) for rest in factorisations(number // size, others))


def with_longer_ring(axes: Axes) -> Axes | None:
    """Return axes with half of each sequence on a GPU and as many shards, None if no shards are left to share it."""
    sizes = dict(axes)
    shards, odd = divmod(sizes.get(SHARDED, 1), 2)
    if odd:
        return None
    sizes |= {SHARDED: shards, CONTEXT: 2 * sizes.get(CONTEXT, 1)}
    return tuple((axis, sizes[axis]) for axis in AXES if axis in sizes)


def micro_batches(batch_size: int | None, most: int) -> Iterator[int]:
    """Yield sizes of micro-batches, the smallest first: powers of two, and the whole batch.

    Args:
        batch_size: samples in a step of GPUs that have the same ones; None: any.
        most: the largest micro-batch that is yielded where the batch is not given.
    """
    size = 1
    while size <= (most if batch_size is None else batch_size):
        yield size
        size *= 2
    if batch_size is not None and batch_size & (batch_size - 1):
        yield batch_size


def combinations(
    meshes: Iterable[Axes], checkpointing: Checkpointing, micro_batch: int, batch_size: int | None
) -> Iterator[Combination]:
    """Yield the combinations of one program on some meshes.

    Several micro-batches are predicted for sharded weights and for pipelines, whose stages keep gathered weights.

    Args:
        batch_size: samples in a step for each GPU, which micro-batches of equal size divide; None: one micro-batch, or
            `ROUNDS` through the stages of a pipeline.
    """
    for axes in meshes:
        one = Combination(axes, True, checkpointing, micro_batch)
        accumulate, rest = ROUNDS * one.stages if one.stages > 1 else 1, 0
        if batch_size is not None:
            accumulate, rest = divmod(batch_size * one.sharing, micro_batch)
        is_sharded, is_cut = one.shards > 1, one.stages > 1
        if rest or not accumulate or (accumulate > 1 and not (is_sharded or is_cut)):
            continue
        choices = [True] * (not (is_sharded and is_cut)) + [False] * is_sharded
        for reshard in choices:
            yield replace(one, reshard_after_forward=reshard, accumulate=accumulate)
