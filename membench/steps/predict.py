"""The library entry `membench.predict`: memory and time of a step on a device, without running or allocating anything.

capture as CUDA runs it -> annotate with the device's costs -> strategy -> validate -> caching allocator, virtual clocks
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.capture.deepened import graph_at
from membench.capture.update import CapturedUpdate
from membench.core import configuration
from membench.core.cluster import Cluster
from membench.core.device import DeviceProfile, as_device
from membench.core.efficiency import Efficiency, with_rates
from membench.core.errors import MembenchError
from membench.core.fully_sharded import check_whole
from membench.core.kernels import Compiled
from membench.core.machine import Machine
from membench.core.optimizer import UpdateOf, WeightUpdate
from membench.core.sharding import REPLICATED
from membench.core.task_graph import TaskGraph
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.parallel.partitioned_update import partitioned
from membench.planning.rewrites.micro_batch import GraphAt
from membench.planning.rewrites.update import add_update, updated_workload
from membench.steps.arguments import (
    OptimizerLike,
    as_bytes,
    as_cluster,
    as_machine,
    as_strategy,
    as_update,
    workload_of,
)
from membench.steps.parallel.ranks import ONE_RANK, Ranks, check_one_device, ranks_of
from membench.steps.parallel.tensor_parallel import Plan
from membench.steps.plan import Runs
from membench.steps.predicted.breakdown import OperatorTime
from membench.steps.predicted.fused_graphs import compiled_parts, step_graphs
from membench.steps.predicted.prediction import Prediction
from membench.steps.predicted.rank_step import RankStep
from membench.strategies.base import Strategy


class Predictor:
    """A step that is captured once, as CUDA runs it, and predicted on any number of devices.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        strategy: the memory-saving method.
        budget_bytes: see `predict`.
        update: of the weights; None: the step ends with the gradients.
        rates: values that replace those of ``conf/framework/pytorch.yaml``, by the names of `KernelRates`.
        ranks: of which each runs the step on as many samples.
        compiled: what of the step `torch.compile` was given; None: nothing.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        budget_bytes: int | None = None,
        update: WeightUpdate | None = None,
        rates: Mapping[str, float] | None = None,
        ranks: Ranks = ONE_RANK,
        compiled: Compiled | None = None,
    ) -> None:
        self._framework = configuration.load("framework", "pytorch")
        self._efficiency: Efficiency = self._framework.efficiency
        if rates:
            self._efficiency = with_rates(self._efficiency, rates)
        step = replace(workload, places_gradients=True)
        if ranks.pipeline is not None:
            step = replace(step, loss_scale=1 / ranks.pipeline.micro_batches)
        else:
            step = updated_workload(step, update)
        prepared = ranks.division.divided if ranks.division else nullcontext
        self._captures = Captures(step, self._framework.captured_on, uses_values=True, prepared=prepared)
        self._graph_at: GraphAt = cache(partial(graph_at, self._captures))
        if compiled is not None:
            self._graph_at = step_graphs(self._captures, compiled, ranks.wrapped).graph_at
        self._strategy = strategy
        self._budget_bytes = budget_bytes
        self._ranks = ranks
        self._by = update
        self._update = self._captured_update()

    def _captured_update(self) -> UpdateOf | None:
        """Return the update of a rank.

        Raises:
            MembenchError: replicas are to divide an update that there is not, or that runs in the backward pass.
        """
        divides = self._ranks.partitions_update
        if self._by is None:
            if divides:
                raise MembenchError(
                    "partition_optimizer=True divides an optimizer's update; name the optimizer, or leave it out"
                )
            return None
        whole = CapturedUpdate(self._by, self.module)
        if not divides:
            return whole
        if self._by.in_backward:
            raise MembenchError(
                "partition_optimizer=True exchanges weights behind the update of all; leave it out, or in_backward"
            )
        return partitioned(whole, REPLICATED, self._ranks.mesh.sizes[REPLICATED])

    @property
    def module(self) -> nn.Module:
        """The captured module."""
        return self._captures.workload.module

    @property
    def graph(self) -> TaskGraph:
        """The step of the whole batch, its update included."""
        graph = self._graph_at(self._captures.workload.batch_size)
        return add_update(self._ranks.graph_of_rank(graph), self._update)

    def on(self, device: DeviceProfile | None = None, machine: Machine | None = None) -> Prediction:
        """Return the prediction for a device; see `predict`.

        Args:
            device: None: that of the ranks' cluster.
            machine: that the device is in; None: the one of ``conf/machine/server.yaml``.
        """
        return self._step_on(device, machine).predicted()

    def planned(
        self, device: DeviceProfile | None = None, machine: Machine | None = None
    ) -> tuple[Runs, RooflineCost]:
        """Return the schedules of a step of ranks that are alike, and the costs by which they were planned; see `on`.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        step = self._step_on(device, machine)
        return step.planned(), step.cost

    def broken_down(
        self, device: DeviceProfile | None = None, machine: Machine | None = None
    ) -> tuple[Prediction, tuple[OperatorTime, ...]]:
        """Return the prediction for a device, and the operators of its step; see `on`.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        return self._step_on(device, machine).broken_down()

    def _step_on(self, device: DeviceProfile | None, machine: Machine | None) -> RankStep:
        # each stage of a pipeline updates its own weights
        update = self._captured_update if self._ranks.pipeline is not None else lambda: self._update
        return RankStep(
            self._graph_at,
            self._captures.workload.batch_size,
            self._strategy,
            self._ranks if device is None else self._ranks.on(device),
            update,
            self._efficiency,
            machine,
            self._budget_bytes,
        )


def predict(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    device: str | DeviceProfile | None = None,
    precision: str | None = None,
    optimizer: OptimizerLike = None,
    strategy: str | Strategy = "pytorch",
    budget: str | float | None = None,
    machine: str | Machine | None = None,
    host_memory: str | float | None = None,
    channels_last: bool = False,
    cluster: str | Cluster | None = None,
    nodes: int = 1,
    parallel: Mapping[str, int] | None = None,
    accumulate: int = 1,
    wrapped: Sequence[str] | None = None,
    reshard_after_forward: bool | None = None,
    reduce_dtype: torch.dtype | None = None,
    partition_optimizer: bool = False,
    tensor_parallel: Plan | None = None,
    pipeline: str | None = None,
    stages: int | None = None,
    kernels: str | None = None,
    allocator: str | None = None,
) -> Prediction:
    """Predict the memory and the time of a step of training or inference on a device that need not be at hand.

    Nothing is allocated: module and batch may be on the meta device (``with torch.device("meta")``), and weights elsewhere
    are only read.

    Args:
        module, loss, batch: see `membench.compile`.
        device: a name (``"rtx4090"``) or a profile; None: the cluster's.
        precision: ``"fp32"``, ``"tf32"``, ``"bf16"``, ``"fp16"``, ``"amp_bf16"`` or ``"amp_fp16"``; None: as the module is, with
            torch's default, in which convolutions round their factors to TF32.
        optimizer: updates the weights in the step: a name (``"adamw"``), a class (``torch.optim.AdamW``), a `functools.partial` of
            one (``partial(torch.optim.AdamW, fused=True)``), an instance over weights of the module, which stays as it is, or a
            `membench.WeightUpdate`, which also updates in the backward pass. None: the step ends with the gradients.
        strategy: a name (``"layrub_hybrid"``) or an instance; by default plain PyTorch.
        budget: the most that the strategy may hold, ``"20 GB"`` or a number of bytes.
        machine: that the device is in: a name (``"desktop"``) or a description; None: ``"server"``. It matters where a strategy keeps
            weights or the optimizer's states in host memory.
        host_memory: the most that the strategy may hold in host memory, what does not fit is kept on the machine's disk; None: what
            the machine has.
        channels_last: weights and inputs of four dimensions have that memory format.
        cluster: of several GPUs: a name (``"dgx_h100"``) or a description. The batch is that of one of them.
        nodes: hosts of the cluster.
        parallel: how many GPUs divide the weights, as torch's ``fully_shard`` does, how many replicas of these there are, and over
            how many GPUs the module is cut into stages: ``{"fsdp": 8}``, ``{"dp": 4, "fsdp": 8}``, ``{"pp": 4, "fsdp": 2}``. None:
            ``{"fsdp": all}``. ``{"fsdp": 4, "tp": 8}``: 8 GPUs share a batch and divide products of matrices and, by the plan,
            sequences. ``{"fsdp": 2, "cp": 4}``: 4 GPUs share a batch and divide its sequences, the second dimension.
            ``{"fsdp": 2, "ep": 4}``: 4 GPUs with batches of their own divide experts, whose shards 2 GPUs share; other weights are in
            shards over all 8. Tokens are taken to be spread evenly over the experts.
        accumulate: micro-batches of a step; ``step_time_s`` is that of all of them, the update included.
        wrapped: names of classes whose modules are gathered one by one; None: those of which a list of modules has several.
        reshard_after_forward: gathered weights are given back after the forward pass; None: unless there are stages, which keep them
            for all micro-batches. Shards are in the precision of the module's weights, gathered weights in that of ``precision``.
        reduce_dtype: in which gradients are added up over GPUs; None: that in which they are computed.
        partition_optimizer: each of the replicas ``dp`` updates a part of the weights and holds the states of these alone, as torch's
            ``ZeroRedundancyOptimizer``.
        tensor_parallel: a plan as torch's ``parallelize_module`` takes it, ``{"blocks.*.query": ColwiseParallel(), ...}``. None: that
            of the module's method ``tensor_parallel_plan``, or of a network of transformers. A module that `parallelize_module` has
            divided is captured as it is.
        pipeline: order of the micro-batches: ``"GPipe"``, ``"1F1B"``, ``"Interleaved1F1B"`` or ``"InterleavedZeroBubble"``, as in
            torch.distributed.pipelining; None: ``"1F1B"``.
        stages: of the pipeline; None: one on each GPU, two with ``"Interleaved1F1B"``. They begin with modules of the classes that are
            gathered one by one.
        kernels: ``"eager"``: PyTorch's operators; ``"inductor"``: the whole step as `torch.compile` fuses it, on GPUs that divide the
            weights each module by itself that is gathered. None: ``"inductor"`` for the modules and the loss that were given to
            `torch.compile`, each by itself.
        allocator: settings of PyTorch's caching allocator as in ``PYTORCH_ALLOC_CONF``: ``"expandable_segments:True"``,
            ``"max_split_size_mb:128"``; they change what is reserved, and with it whether the step fits.

    Raises:
        UnsupportedModel: the module cannot be captured, or cut into stages; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget, or the limit of host memory.
        MembenchError: an argument is invalid.
    """
    check_whole(module)
    workload = workload_of(module, loss, batch, precision=precision, channels_last=channels_last)
    known, compiled = compiled_parts(module, loss, kernels)
    workload = replace(workload, compiled=known)
    inside = as_machine(machine, as_bytes(host_memory, "host_memory"))
    of_ranks: dict[str, Any] = {
        "parallel": parallel,
        "accumulate": accumulate,
        "wrapped": wrapped,
        "reshard_after_forward": reshard_after_forward,
        "reduce_dtype": reduce_dtype,
        "partition_optimizer": partition_optimizer,
        "tensor_parallel": tensor_parallel,
        "pipeline": pipeline,
        "stages": stages,
    }
    if cluster is None:
        check_one_device(nodes=nodes, **of_ranks)
        ranks = ONE_RANK.on(as_device(device, allocator))
    else:
        ranks = ranks_of(
            module, as_cluster(cluster, nodes=nodes, device=device, allocator=allocator), **of_ranks
        )
    predictor = Predictor(
        workload,
        as_strategy(strategy),
        as_bytes(budget),
        as_update(optimizer),
        ranks=ranks,
        compiled=compiled,
    )
    return predictor.on(machine=inside)
