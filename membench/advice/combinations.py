"""The combinations of options with which a step can run on several GPUs, enumerated."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from membench.core.sharding import REPLICATED, SHARDED
from membench.models.checkpointing import Checkpointing

AXES = (REPLICATED, SHARDED)
"""Over which GPUs are divided, the outermost first."""

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
        """GPUs over which weights are divided."""
        return self.parallel.get(SHARDED, 1)

    @property
    def samples(self) -> int:
        """Samples of one GPU in a step."""
        return self.micro_batch * self.accumulate

    @property
    def global_batch(self) -> int:
        """Samples of all GPUs in a step."""
        return self.samples * prod(size for name, size in self.axes if name in (REPLICATED, SHARDED))


def factorisations(number: int, axes: Sequence[str]) -> Iterator[Axes]:
    """Yield the sizes of axes whose product is a number, each choice of sizes once, the largest of the last axis first."""
    first, *others = axes
    if not others:
        yield ((first, number),)
        return
    for size in range(1, number + 1):
        if number % size == 0:
            yield from (((first, size), *rest) for rest in factorisations(number // size, others))


def micro_batches(batch_size: int | None, most: int) -> Iterator[tuple[int, int]]:
    """Yield sizes of micro-batches with how many of them a step has, the smallest first.

    Args:
        batch_size: samples of one GPU in a step, which powers of two and the whole batch divide; None: any, in one micro-batch.
        most: the largest micro-batch that is yielded where the batch is not given.
    """
    size = 1
    while size <= (most if batch_size is None else batch_size):
        if batch_size is None:
            yield size, 1
        elif batch_size % size == 0:
            yield size, batch_size // size
        size *= 2
    if batch_size is not None and batch_size & (batch_size - 1):
        yield batch_size, 1


def combinations(
    meshes: Iterable[Axes], checkpointing: Checkpointing, micro_batch: int, accumulate: int
) -> Iterator[Combination]:
    """Yield the combinations of one program on some meshes; several micro-batches are predicted for sharded weights alone."""
    for axes, reshard in product(meshes, (True, False)):
        found = Combination(axes, reshard, checkpointing, micro_batch, accumulate)
        if found.shards > 1 or (reshard and accumulate == 1):
            yield found
