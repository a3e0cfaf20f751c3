"""Keywords about several GPUs; without torch, for which a wrong word of a command line need not wait."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from membench.core.checks import Requirement
from membench.steps.kinds import Count, Name, Names, Switch, instance_of

if TYPE_CHECKING:
    from torch import dtype as Dtype
else:
    Dtype = Any

_DTYPE = Requirement(
    "a torch.dtype, or a name such as 'bf16'",
    lambda value: isinstance(value, str) or str(type(value)) == "<class 'torch.dtype'>",
)


class DivisionKeywords(TypedDict, total=False):
    """How several GPUs divide a step.

    Attributes:
        parallel: how many GPUs divide the weights, as torch's ``fully_shard`` does, how many replicas of these there
            are, and over how many GPUs the module is cut into stages: ``{"fsdp": 8}``, ``{"dp": 4, "fsdp": 8}``,
            ``{"pp": 4, "fsdp": 2}``. None: ``{"fsdp": all}``. ``{"fsdp": 4, "tp": 8}``: 8 GPUs share a batch and divide
            products of matrices and, by the plan, sequences. ``{"fsdp": 2, "cp": 4}``: 4 GPUs share a batch and divide
            its sequences, the second dimension. ``{"fsdp": 2, "ep": 4}``: 4 GPUs with batches of their own divide
            experts, whose shards 2 GPUs share; other weights are in shards over all 8. Tokens are taken to be spread
            evenly over the experts.
        wrapped: names of classes whose modules are gathered one by one; None: those of which a list of modules has
            several.
        reduce_dtype: in which gradients are added up over GPUs, ``"fp32"`` or a dtype; None: that in which they are
            computed.
        tensor_parallel: a plan as torch's ``parallelize_module`` takes it, ``{"blocks.*.query": ColwiseParallel(),
            ...}``. None: that of the module's method ``tensor_parallel_plan``, or of a network of transformers. A
            module that `parallelize_module` has divided is captured as it is.
    """

    parallel: Annotated[Mapping[str, int], instance_of(Mapping, "a dict")] | None
    wrapped: Names | None
    reduce_dtype: Annotated[str | Dtype, _DTYPE] | None
    tensor_parallel: Annotated[Mapping[str, Any], instance_of(Mapping, "a dict")] | None


class RankKeywords(DivisionKeywords, total=False):
    """How each of several GPUs runs its part, and micro-batches.

    Attributes:
        accumulate: micro-batches of a step, on one device too, each as large as the batch; the time of a step is that
            of all of them, the update included.
        reshard_after_forward: gathered weights are given back after the forward pass; None: unless there are stages,
            which keep them for all micro-batches. Shards are in the precision of the module's weights, gathered weights
            in that of ``precision``.
        partition_optimizer: each of the replicas ``dp`` updates a part of the weights and holds the states of these
            alone, as torch's ``ZeroRedundancyOptimizer``.
        pipeline: order of the micro-batches: ``"GPipe"``, ``"1F1B"``, ``"Interleaved1F1B"`` or
            ``"InterleavedZeroBubble"``, as in torch.distributed.pipelining; None: ``"1F1B"``.
        stages: number of the pipeline's; None: one on each GPU, two with ``"Interleaved1F1B"``. They begin with modules
            of the classes that are gathered one by one.
    """

    accumulate: Count
    reshard_after_forward: Switch | None
    partition_optimizer: Switch
    pipeline: Name | None
    stages: Count | None
