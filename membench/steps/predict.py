"""The library entry `membench.predict`: memory and time of a step on a device, without running or allocating anything.

capture as CUDA runs it -> annotate with the device's costs -> strategy -> validate -> caching allocator, virtual clocks
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.capture.update import CapturedUpdate
from membench.core import configuration
from membench.core.cluster import Cluster
from membench.core.cost_model import CostModel
from membench.core.device import DeviceProfile
from membench.core.efficiency import Efficiency, with_rates
from membench.core.machine import Machine
from membench.core.optimizer import UpdateOf, WeightUpdate
from membench.core.schedule import Compute, RepeatedSchedule, Schedule
from membench.core.task_graph import Phase, TaskGraph
from membench.core.workload import Workload
from membench.cost.kernels import priced_by_bytes
from membench.cost.roofline import RooflineCost
from membench.planning.device_memory import device_memory
from membench.planning.holders import held_at_peak_bytes, returned_in_objects_bytes
from membench.planning.liveness import host_live_bytes
from membench.planning.micro_batch import GraphAt
from membench.planning.replication import replicate
from membench.planning.sharding import shard
from membench.planning.update import add_states, add_update, updated_workload
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
from membench.steps.plan import plan_step
from membench.steps.ranks import REPLICATED, Ranks, ranks_of
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy


@dataclass(frozen=True)
class Prediction:
    """Predicted memory and time of a step on a device. All of it is simulated.

    Attributes:
        device: name of the device.
        batch_size: samples of the step.
        allocated_bytes: peak of the tensors and workspaces that the step holds.
        reserved_bytes: peak of what PyTorch's caching allocator holds for them on the device, fragmentation included; of a
            step that does not fit, on a device that has the memory.
        used_bytes: `reserved_bytes` and the context, as nvidia-smi shows; None: the device's context is not known.
        step_time_s: seconds of a step, on a device that has the memory if the step does not fit.
        fits: whether the device has the memory, after the caching allocator has returned what it does not use.
        capacity_bytes: memory of the device.
        host_bytes: host memory of what has its home there, and of copies of what leaves the device.
        parts_bytes: what the allocated peak consists of: weights, gradients, activations ...; adds up to `allocated_bytes`.
        cache_bytes: of tensors that the step returns in objects: the keys and values of all sequences in a step of inference.
        depends_on_values: sizes were computed from the values of this batch, so that the prediction holds for it alone.
        priced_by_bytes: kernels of libraries, ``"library.name"``, whose time is that of moving their arguments and results. A
            formula that `torch.utils.flop_counter.register_flop_formula` has registered adds that of operations.
        exposed_communication_s: seconds of a step in which a rank does nothing but take part in collectives.
        utilization: the seconds that the step's operations would take at the device's rates of products, without those of
            recomputation, over those that it takes (MFU).

    Of several GPUs it is the prediction of one rank: all are alike.
    """

    device: str
    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int | None
    step_time_s: float
    fits: bool
    capacity_bytes: int
    parts_bytes: Mapping[str, int]
    host_bytes: int = 0
    cache_bytes: int = 0
    depends_on_values: bool = False
    priced_by_bytes: tuple[str, ...] = ()
    exposed_communication_s: float = 0.0
    utilization: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples of the batch per second."""
        return self.batch_size / self.step_time_s


class Predictor:
    """A step that is captured once, as CUDA runs it, and predicted on any number of devices.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        strategy: the memory-saving method.
        budget_bytes: see `predict`.
        update: of the weights; None: the step ends with the gradients.
        rates: values that replace those of ``conf/framework/pytorch.yaml``, by the names of `KernelRates`.
        ranks: of which each runs the step on as many samples; None: there is one.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        budget_bytes: int | None = None,
        update: WeightUpdate | None = None,
        rates: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._framework = configuration.load("framework", "pytorch")
        self._efficiency: Efficiency = self._framework.efficiency
        if rates:
            self._efficiency = with_rates(self._efficiency, rates)
        step = updated_workload(workload, update)
        self._captures = Captures(step, self._framework.captured_on, uses_values=True)
        self._strategy = strategy
        self._budget_bytes = budget_bytes
        self._ranks = ranks
        self._update = None if update is None else CapturedUpdate(update, workload.module)

    @property
    def module(self) -> nn.Module:
        """The captured module."""
        return self._captures.workload.module

    @property
    def graph(self) -> TaskGraph:
        """The step of the whole batch, its update included."""
        graph = self._captures.graph_at(self._captures.workload.batch_size)
        return add_update(rank_graph(graph, self._ranks), self._update)

    def on(self, device: DeviceProfile, machine: Machine | None = None) -> Prediction:
        """Return the prediction for a device; see `predict`.

        Args:
            machine: that the device is in; None: the one of ``conf/machine/server.yaml``.
        """
        return predict_graphs(
            self._captures.graph_at,
            self._captures.workload.batch_size,
            self._strategy,
            device,
            self._efficiency,
            budget_bytes=self._budget_bytes,
            update=self._update,
            machine=machine,
            ranks=self._ranks,
        )


def predict_graphs(
    graph_at: GraphAt,
    batch_size: int,
    strategy: Strategy,
    device: DeviceProfile,
    efficiency: Efficiency,
    *,
    budget_bytes: int | None = None,
    update: UpdateOf | None = None,
    machine: Machine | None = None,
    ranks: Ranks | None = None,
) -> Prediction:
    """Return the prediction of a step whose graphs are at hand; see `Predictor`.

    Args:
        graph_at: returns the captured graph of one device for a number of samples.
    """
    link = device if ranks is None else ranks.mesh.cluster.loaded(device)
    cost = RooflineCost(link, efficiency, as_machine(machine), ranks.mesh if ranks else None)

    def planned(graphs: GraphAt, by: UpdateOf | None) -> tuple[RepeatedSchedule, ...]:
        return plan_step(graphs, batch_size, strategy, cost, budget_bytes, update=by)

    runs = planned(lambda size: rank_graph(graph_at(size), ranks), update)
    if ranks is not None and ranks.accumulate > 1:
        [first] = planned(lambda size: add_states(rank_graph(graph_at(size), ranks), update), None)
        runs = (replace(first, count=ranks.accumulate - 1), *runs)
    return predicted(runs, cost, device)


def rank_graph(graph: TaskGraph, ranks: Ranks | None) -> TaskGraph:
    """Return the graph of one rank of a step that is captured on one device."""
    if ranks is None or not ranks.mesh.axes:
        return graph
    return shard(graph, ranks.sharding) if ranks.sharding else replicate(graph, REPLICATED)


def predicted(runs: tuple[RepeatedSchedule, ...], cost: CostModel, device: DeviceProfile) -> Prediction:
    """Return the prediction of a planned step."""
    largest = max((run.schedule for run in runs), key=lambda schedule: schedule.peak_bytes)
    memory = device_memory(runs, device)
    step = simulated_step(runs, cost)
    return Prediction(
        device=device.name,
        batch_size=sum(run.samples for run in runs),
        allocated_bytes=memory.allocated_bytes,
        reserved_bytes=memory.reserved_bytes,
        used_bytes=memory.used_bytes,
        step_time_s=step.step_time_s,
        fits=memory.fits,
        capacity_bytes=device.memory_bytes,
        parts_bytes=held_at_peak_bytes(largest),
        host_bytes=max(max(host_live_bytes(run.schedule), default=0) for run in runs),
        cache_bytes=returned_in_objects_bytes(largest.graph),
        depends_on_values=largest.graph.depends_on_values,
        priced_by_bytes=priced_by_bytes(largest.graph.tasks),
        utilization=sum(run.count * _at_peak_s(run.schedule.graph, device) for run in runs)
        / step.step_time_s,
        exposed_communication_s=sum(
            run.count * timeline.exposed_s(collectives_of(run.schedule))
            for run, timeline in zip(runs, step.timelines, strict=True)
        ),
    )


def _at_peak_s(graph: TaskGraph, device: DeviceProfile) -> float:
    """Return the seconds of a step's operations at the device's rates, without those that run again."""
    tasks = (task for task in graph.tasks if not task.is_recomputed and task.phase is not Phase.UPDATE)
    return sum(
        task.operations / device.product_ops_per_s(task.precision) for task in tasks if task.operations
    )


def collectives_of(schedule: Schedule) -> frozenset[int]:
    """Return the positions of a schedule's collectives."""
    tasks = schedule.graph.tasks
    return frozenset(
        position
        for position, item in enumerate(schedule.instructions)
        if isinstance(item, Compute) and tasks[item.task].collective
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
    reshard_after_forward: bool = True,
    reduce_dtype: torch.dtype | None = None,
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
        parallel: how many GPUs divide the weights, as torch's ``fully_shard`` does, and how many replicas of these there are:
            ``{"fsdp": 8}``, ``{"dp": 4, "fsdp": 8}``. None: ``{"fsdp": all}``.
        accumulate: micro-batches of a step; ``step_time_s`` is that of all of them, the update included.
        wrapped: names of classes whose modules are gathered one by one; None: those of which a list of modules has several.
        reshard_after_forward: gathered weights are given back after the forward pass. Shards are in the precision of the module's
            weights, gathered weights in that of ``precision``.
        reduce_dtype: in which gradients are added up over GPUs; None: that in which they are computed.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget, or the limit of host memory.
        MembenchError: an argument is invalid.
    """
    workload = workload_of(module, loss, batch, precision=precision, channels_last=channels_last)
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
        )
    predictor = Predictor(
        workload, as_strategy(strategy), as_bytes(budget), as_update(optimizer), ranks=ranks
    )
    return predictor.on(as_device(device), inside)
