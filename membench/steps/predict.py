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
from membench.core.cost_model import CostModel
from membench.core.device import DeviceProfile
from membench.core.efficiency import Efficiency, with_rates
from membench.core.errors import MembenchError
from membench.core.fully_sharded import check_whole
from membench.core.garbage import without_collection
from membench.core.kernels import Compiled
from membench.core.machine import Machine
from membench.core.optimizer import UpdateOf, WeightUpdate
from membench.core.pipeline import Pipeline, PipelineSchedule
from membench.core.sharding import REPLICATED
from membench.core.task_graph import TaskGraph
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.parallel.partitioned_update import partitioned
from membench.planning.parallel.pipeline import pipelined
from membench.planning.parallel.replication import replicate
from membench.planning.parallel.sharding import shard
from membench.planning.rewrites.micro_batch import GraphAt
from membench.planning.rewrites.update import add_states, add_update, updated_workload
from membench.steps.arguments import (
    OptimizerLike,
    as_bytes,
    as_cluster,
    as_device,
    as_machine,
    as_strategy,
    as_update,
    workload_of,
)
from membench.steps.parallel.ranks import Ranks, ranks_of
from membench.steps.parallel.tensor_parallel import Plan
from membench.steps.plan import Runs, plan_step
from membench.steps.predicted.fused_graphs import compiled_parts, step_graphs
from membench.steps.predicted.prediction import Prediction, after_rounds, of_stages, predicted
from membench.steps.predicted.simulated_step import simulated_pipeline, simulated_step
from membench.strategies.base import Strategy
from membench.strategies.pytorch import PyTorch


class Predictor:
    """A step that is captured once, as CUDA runs it, and predicted on any number of devices.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        strategy: the memory-saving method.
        budget_bytes: see `predict`.
        update: of the weights; None: the step ends with the gradients.
        rates: values that replace those of ``conf/framework/pytorch.yaml``, by the names of `KernelRates`.
        ranks: of which each runs the step on as many samples; None: there is one.
        compiled: what of the step `torch.compile` was given; None: nothing.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        budget_bytes: int | None = None,
        update: WeightUpdate | None = None,
        rates: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        self._framework = configuration.load("framework", "pytorch")
        self._efficiency: Efficiency = self._framework.efficiency
        if rates:
            self._efficiency = with_rates(self._efficiency, rates)
        step = replace(workload, places_gradients=True)
        if ranks is not None and ranks.pipeline is not None:
            step = replace(step, loss_scale=1 / ranks.pipeline.micro_batches)
        else:
            step = updated_workload(step, update)
        prepared = ranks.division.divided if ranks is not None and ranks.division else nullcontext
        self._captures = Captures(step, self._framework.captured_on, uses_values=True, prepared=prepared)
        self._graph_at: GraphAt = cache(partial(graph_at, self._captures))
        if compiled is not None:
            self._graph_at = step_graphs(self._captures, compiled, ranks.wrapped if ranks else ()).graph_at
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
        if self._by is None:
            if self._ranks is not None and self._ranks.partitions_update:
                raise MembenchError(
                    "partition_optimizer=True divides an optimizer's update; name the optimizer, or leave it out"
                )
            return None
        whole, ranks = CapturedUpdate(self._by, self.module), self._ranks
        if ranks is None or not ranks.partitions_update:
            return whole
        if self._by.in_backward:
            raise MembenchError(
                "partition_optimizer=True exchanges weights behind the update of all; leave it out, or in_backward"
            )
        return partitioned(whole, REPLICATED, ranks.mesh.sizes[REPLICATED])

    @property
    def module(self) -> nn.Module:
        """The captured module."""
        return self._captures.workload.module

    @property
    def graph(self) -> TaskGraph:
        """The step of the whole batch, its update included."""
        graph = self._graph_at(self._captures.workload.batch_size)
        return add_update(rank_graph(graph, self._ranks), self._update)

    def on(self, device: DeviceProfile, machine: Machine | None = None) -> Prediction:
        """Return the prediction for a device; see `predict`.

        Args:
            machine: that the device is in; None: the one of ``conf/machine/server.yaml``.
        """
        cost = rank_cost(device, self._efficiency, machine, self._ranks)
        size, budget_bytes = self._captures.workload.batch_size, self._budget_bytes
        ranks = self._ranks
        # each stage of a pipeline updates its own weights
        is_cut = ranks is not None and ranks.pipeline is not None
        update = self._captured_update if is_cut else lambda: self._update
        return predict_rank(self._graph_at, size, self._strategy, device, cost, update, ranks, budget_bytes)

    def planned(self, device: DeviceProfile, machine: Machine | None = None) -> tuple[Runs, RooflineCost]:
        """Return the schedules of a step of ranks that are alike, and the costs by which they were planned.

        Args:
            machine: see `on`.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        if self._ranks is not None and self._ranks.pipeline is not None:
            raise MembenchError(
                "the ranks of a pipeline differ, and are predicted together; leave pp out of parallel, or the breakdown"
            )
        cost = rank_cost(device, self._efficiency, machine, self._ranks)
        batch_size, budget_bytes = self._captures.workload.batch_size, self._budget_bytes
        planned = (self._graph_at, batch_size, self._strategy, cost, budget_bytes, self._update, self._ranks)
        return plan_rank(*planned), cost


def predict_rank(
    graph_at: GraphAt,
    batch_size: int,
    strategy: Strategy,
    device: DeviceProfile,
    cost: RooflineCost,
    update: Callable[[], UpdateOf | None],
    ranks: Ranks | None = None,
    budget_bytes: int | None = None,
) -> Prediction:
    """Return the prediction of one rank: of a pipeline, whose ranks are simulated together, the one with the greatest memory.

    Args:
        graph_at: returns the captured graph of one device for a number of samples.
        cost: see `rank_cost`.
        update: returns a new one for each rank.
    """
    if ranks is not None and ranks.pipeline is not None:
        with without_collection():  # which would look through millions of objects again and again
            whole = graph_at(batch_size)
            return _predict_pipeline(
                whole, ranks.pipeline, strategy, device, cost, ranks, update, budget_bytes
            )
    runs = plan_rank(graph_at, batch_size, strategy, cost, budget_bytes, update(), ranks)
    return predicted(runs, simulated_step(runs, cost), device)


def _predict_pipeline(
    whole: TaskGraph,
    pipeline: Pipeline,
    strategy: Strategy,
    device: DeviceProfile,
    cost: CostModel,
    ranks: Ranks,
    update: Callable[[], UpdateOf | None],
    budget_bytes: int | None = None,
) -> Prediction:
    """Return the prediction of the rank with the greatest memory, with those of all places in a pipeline.

    Args:
        whole: the captured graph of a micro-batch, whose loss is scaled to its part of the step.
        update: returns a new one for each rank.
    """

    def places(each: Pipeline) -> list[Prediction]:
        return _places(whole, each, strategy, device, cost, ranks, update, budget_bytes)

    if pipeline.shorter is None:
        return of_stages(places(pipeline))
    few, more = map(places, pipeline.shorter)
    first, second = (each.micro_batches for each in pipeline.shorter)
    rounds = (pipeline.micro_batches - first) / (second - first)
    return of_stages(after_rounds(rounds, *each) for each in zip(few, more, strict=True))


def _places(
    whole: TaskGraph,
    pipeline: Pipeline,
    strategy: Strategy,
    device: DeviceProfile,
    cost: CostModel,
    ranks: Ranks,
    update: Callable[[], UpdateOf | None],
    budget_bytes: int | None,
) -> list[Prediction]:
    """Return the prediction of each place in a pipeline, whose step ends with that of the last rank."""
    if isinstance(strategy, PyTorch):
        whole = whole.plain_alone
    plans = []
    for rank in pipelined(whole, pipeline):
        graph = rank_graph(rank.graph, ranks)
        graphs = {graph.batch_size: graph}.__getitem__
        plans.append(plan_step(graphs, graph.batch_size, strategy, cost, budget_bytes, update=update()))
    steps = simulated_pipeline(plans, cost)
    step_time_s = max(step.step_time_s for step in steps)
    places = []
    for runs, step in zip(plans, steps, strict=True):
        alone = predicted(runs, step, device)
        utilization = alone.utilization * alone.step_time_s / step_time_s
        places.append(replace(alone, step_time_s=step_time_s, utilization=utilization))
    return places


def plan_rank(
    graph_at: GraphAt,
    batch_size: int,
    strategy: Strategy,
    cost: CostModel,
    budget_bytes: int | None = None,
    update: UpdateOf | None = None,
    ranks: Ranks | None = None,
) -> Runs:
    """Return the schedules of a rank's step whose graphs are at hand; see `Predictor`.

    Args:
        graph_at: returns the captured graph of one device for a number of samples.
    """

    def planned(graphs: GraphAt, by: UpdateOf | None) -> Runs:
        return plan_step(graphs, batch_size, strategy, cost, budget_bytes, update=by)

    runs = planned(lambda size: rank_graph(graph_at(size), ranks), update)
    if ranks is not None and ranks.accumulate > 1:
        [first] = planned(lambda size: add_states(rank_graph(graph_at(size), ranks), update), None)
        runs = (replace(first, count=ranks.accumulate - 1), *runs)
    return runs


def rank_cost(
    device: DeviceProfile, efficiency: Efficiency, machine: Machine | None, ranks: Ranks | None
) -> RooflineCost:
    """Return the costs of a rank's step, whose device shares its link with others."""
    link = device if ranks is None else ranks.mesh.cluster.loaded(device)
    return RooflineCost(link, efficiency, as_machine(machine), ranks.mesh if ranks else None)


def rank_graph(graph: TaskGraph, ranks: Ranks | None) -> TaskGraph:
    """Return the graph of a rank, with its shards of the weights or its buckets, of a step that is captured on one device."""
    if ranks is None:
        return graph
    if ranks.sharding:
        sharded = shard(graph, ranks.sharding)
        return shard(sharded, ranks.experts) if ranks.experts else sharded
    if REPLICATED in ranks.mesh.sizes:
        sizes = {"first_bytes": ranks.bucket_bytes, "bucket_bytes": ranks.bucket_bytes}
        buckets = {name: size for name, size in sizes.items() if size is not None}
        return replicate(graph, REPLICATED, ranks.mesh.sizes[REPLICATED], **buckets)
    return graph


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
    pipeline: str = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
    stages: int | None = None,
    kernels: str | None = None,
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
            torch.distributed.pipelining.
        stages: of the pipeline; None: one on each GPU, two with ``"Interleaved1F1B"``. They begin with modules of the classes that are
            gathered one by one.
        kernels: ``"eager"``: PyTorch's operators; ``"inductor"``: the whole step as `torch.compile` fuses it, on GPUs that divide the
            weights each module by itself that is gathered. None: ``"inductor"`` for the modules and the loss that were given to
            `torch.compile`, each by itself.

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
    ranks = None
    if cluster is not None:
        described = as_cluster(cluster)
        device = device or described.device or None
        ranks = ranks_of(
            module,
            described,
            nodes=nodes,
            parallel=parallel,
            accumulate=accumulate,
            wrapped=wrapped,
            reshard_after_forward=reshard_after_forward,
            reduce_dtype=reduce_dtype,
            partition_optimizer=partition_optimizer,
            tensor_parallel=tensor_parallel,
            pipeline=pipeline,
            stages=stages,
        )
    predictor = Predictor(
        workload,
        as_strategy(strategy),
        as_bytes(budget),
        as_update(optimizer),
        ranks=ranks,
        compiled=compiled,
    )
    return predictor.on(as_device(device), inside)
