"""The meshes of GPUs over which a step may be divided, and the micro-batches that are tried on them."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import gcd

import torch

from membench.advice.cluster.combinations import Axes, Combination, factorisations, micro_batches, with_longer_ring
from membench.advice.cluster.rank_options import RankOptions
from membench.core.errors import MembenchError
from membench.core.step.arguments import tensors_in
from membench.core.step.pipeline import PIPELINED
from membench.core.step.workload import Workload
from membench.models.checkpointing import Checkpointing
from membench.steps.parallel.context_parallel import AXIS as CONTEXT
from membench.steps.parallel.division import Division
from membench.steps.parallel.expert_parallel import AXIS as EXPERTS
from membench.steps.parallel.expert_parallel import experts_in
from membench.steps.parallel.ranks import AXES, Ranks, ranks_of
from membench.steps.parallel.tensor_parallel import AXIS as TENSOR
from membench.steps.parallel.tensor_parallel import plan_of

MOST_SAMPLES = 1 << 10
"""The largest micro-batch that is looked for."""


def converts(workload: Workload) -> bool:
    """Return whether products are in another precision than the module's weights."""
    precision = workload.precision
    return precision is not None and precision.dtype not in (None, torch.float32)


def tokens_of(workload: Workload) -> int | None:
    """Return the length of a sample that is a sequence of tokens."""
    first = next(iter(tensors_in(workload.inputs)), None)
    is_sequence = first is not None and first.dim() == 2 and not first.is_floating_point()
    return first.shape[1] if first is not None and is_sequence else None


class Meshes:
    """The mesh that is asked for, or all in which a rank has its weights in the precision of the module.

    Whole weights of a module that is converted would be updated in half precision, with other results. Sequences are
    divided where that is asked for, and by `with_longer_ring`.

    Args:
        blocks: names of the module's blocks, between which a pipeline is cut.

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

    def stages(self) -> set[int]:
        """Return the numbers of stages that a pipeline has in some mesh."""
        return {dict(axes).get(PIPELINED, 1) for axes in self._all} - {1}

    @property
    def divisions(self) -> list[Division]:
        """What meshes divide before a step is captured."""
        return list(dict.fromkeys(_one(axes).division for axes in self._all))

    def of(self, division: Division) -> list[Axes]:
        """Return the meshes with a division."""
        return [axes for axes in self._all if _one(axes).division == division]

    def with_longer_ring(self, axes: Axes) -> Axes | None:
        """Return a mesh with half of each sequence on a GPU and as many shards, None if that is not considered."""
        longer = with_longer_ring(axes)
        if longer is None or self._options.parallel is not None:
            return None
        division, tokens = _one(longer).division, tokens_of(self._workload)
        # rings among ranks that divide experts are other ones in torchtitan
        may_be_divided = tokens is not None and tokens % (2 * division.context) == 0
        return longer if may_be_divided and division.experts == 1 else None

    def micro_batches(self, meshes: Iterable[Axes]) -> list[int]:
        """Return the micro-batches that are tried on some meshes, the smallest first."""
        batch_size = self._options.batch_size
        if batch_size is None:
            return list(micro_batches(None, MOST_SAMPLES))
        sharing = {_one(axes).sharing for axes in meshes}
        return sorted({size for number in sharing for size in micro_batches(number * batch_size, MOST_SAMPLES)})

    def ranks(self, combination: Combination) -> Ranks:
        """Return the ranks of a combination."""
        reshard = combination.reshard_after_forward and combination.stages == 1
        return self._ranks(combination.axes, reshard, combination.accumulate)

    def _given(self, parallel: Mapping[str, int]) -> Axes:
        axes = tuple((axis, parallel[axis]) for axis in (*AXES, *(set(parallel) - set(AXES))) if axis in parallel)
        one = _one(axes)
        self._ranks(axes, one.shards > 1 and one.stages == 1, one.stages)  # checks it
        return axes

    def _possible(self, blocks: int) -> Iterator[Axes]:
        cluster, is_dividable = self._options.cluster, self._has_plan()
        experts, is_converted = self._experts(), converts(self._workload)
        left_out = {CONTEXT} if experts > 1 else {CONTEXT, EXPERTS}
        for axes in factorisations(cluster.devices, [axis for axis in AXES if axis not in left_out]):
            one = _one(axes)
            tensor, divided = one.division.tensor, one.division.experts
            is_within_a_host = cluster.joined_devices % tensor == 0
            may_be_divided = tensor == 1 or (is_dividable and is_within_a_host and divided == 1)
            has_shards = one.shards > 1 or not is_converted
            if may_be_divided and experts % divided == 0 and one.stages <= blocks and has_shards:
                yield axes

    def _experts(self) -> int:
        """Return the number of experts of each module of them, or one that divides all numbers."""
        try:
            modules = experts_in(self._workload.module).values()
        except MembenchError:
            return 1
        return gcd(*(len(next(each.parameters())) for each in modules))

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
            # all axes are named, as an option may be for one that has a single rank here
            parallel={**dict.fromkeys(AXES, 1), **dict(axes)},
            accumulate=accumulate,
            wrapped=options.wrapped,
            reshard_after_forward=reshard_after_forward,
            reduce_dtype=options.reduce_dtype,
            tensor_parallel=options.tensor_parallel if dict(axes).get(TENSOR, 1) > 1 else None,
        )


def _one(axes: Axes) -> Combination:
    """Return a combination of a mesh."""
    return Combination(axes, True, Checkpointing.NONE, 1)
