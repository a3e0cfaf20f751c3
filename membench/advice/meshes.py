"""The meshes of GPUs over which a step may be divided, and the micro-batches that are tried on them."""

from collections.abc import Iterator, Mapping
from functools import cache

import torch

from membench.advice.combinations import AXES, PREDICTED, Axes, Combination, factorisations, micro_batches
from membench.advice.rank_options import RankOptions
from membench.core.errors import MembenchError
from membench.core.pipeline import PIPELINED
from membench.core.workload import Workload
from membench.models.checkpointing import Checkpointing
from membench.steps.parallel.ranks import Ranks, ranks_of
from membench.steps.parallel.tensor_parallel import AXIS as TENSOR
from membench.steps.parallel.tensor_parallel import plan_of

MOST_SAMPLES = 1 << 10
"""The largest micro-batch that is looked for."""


def converts(workload: Workload) -> bool:
    """Return whether products are in another precision than the module's weights."""
    precision = workload.precision
    return precision is not None and precision.dtype not in (None, torch.float32)


class Meshes:
    """The mesh that is asked for, or all in which a rank has its weights in the precision of the module.

    Whole weights of a module that is converted would be updated in half precision, with other results.

    Args:
        blocks: of the module, between which a pipeline is cut.

    Attributes:
        refused: why products are not divided.

    Raises:
        MembenchError: the options contradict the cluster.
    """

    def __init__(self, workload: Workload, options: RankOptions, blocks: int) -> None:
        self._workload, self._options = workload, options
        self.refused: dict[str, MembenchError] = {}
        self._ranks = cache(self._ranks_of)
        parallel = options.parallel
        self._all = [self._given(parallel)] if parallel is not None else list(self._possible(blocks))

    def sizes(self, axis: str) -> set[int]:
        """Return the sizes that an axis has in some mesh."""
        return {dict(axes).get(axis, 1) for axes in self._all}

    def of_tensor(self, tensor: int) -> list[Axes]:
        """Return the meshes in which so many GPUs divide products."""
        return [axes for axes in self._all if dict(axes).get(TENSOR, 1) == tensor]

    def micro_batches(self, tensor: int) -> list[int]:
        """Return the micro-batches that are tried where so many GPUs divide products, the smallest first."""
        batch_size = self._options.batch_size
        if batch_size is None:
            return list(micro_batches(None, MOST_SAMPLES))
        sharing = {tensor * dict(axes).get(PIPELINED, 1) for axes in self.of_tensor(tensor)}
        return sorted(
            {size for number in sharing for size in micro_batches(number * batch_size, MOST_SAMPLES)}
        )

    def ranks(self, combination: Combination) -> Ranks:
        """Return the ranks of a combination."""
        reshard = combination.reshard_after_forward and combination.stages == 1
        return self._ranks(combination.axes, reshard, combination.accumulate)

    def _given(self, parallel: Mapping[str, int]) -> Axes:
        for axis, divided in PREDICTED.items():
            if parallel.get(axis, 1) > 1:
                raise MembenchError(
                    f"advice does not divide {divided}; leave {axis} out of parallel, or predict the step with membench predict"
                )
        axes = tuple(
            (axis, parallel[axis]) for axis in (*AXES, *(set(parallel) - set(AXES))) if axis in parallel
        )
        one = Combination(axes, True, Checkpointing.NONE, 1)
        self._ranks(axes, one.shards > 1 and one.stages == 1, one.stages)  # checks it
        return axes

    def _possible(self, blocks: int) -> Iterator[Axes]:
        cluster, is_dividable = self._options.cluster, self._has_plan()
        is_converted = converts(self._workload)
        for axes in factorisations(cluster.devices, AXES):
            one = Combination(axes, True, Checkpointing.NONE, 1)
            is_within_a_host = cluster.devices_per_host % one.tensor == 0
            may_be_divided = one.tensor == 1 or (is_dividable and is_within_a_host)
            if may_be_divided and one.stages <= blocks and (one.shards > 1 or not is_converted):
                yield axes

    def _has_plan(self) -> bool:
        if self._options.tensor_parallel is None:
            try:
                plan_of(self._workload.module)
            except MembenchError as error:
                self.refused["tensor parallelism"] = error
                return False
        return True

    def _ranks_of(self, axes: Axes, reshard_after_forward: bool, accumulate: int) -> Ranks:
        options = self._options
        return ranks_of(
            self._workload.module,
            options.cluster,
            parallel=dict(axes),
            accumulate=accumulate,
            wrapped=options.wrapped,
            reshard_after_forward=reshard_after_forward,
            reduce_dtype=options.reduce_dtype,
            tensor_parallel=options.tensor_parallel if dict(axes).get(TENSOR, 1) > 1 else None,
        )
