"""The library entry: `membench.compile` turns a step into one with a memory strategy.

capture -> annotate with the device's costs -> strategy -> validate -> a step that runs or simulates
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from membench.backends.real import real_backend, real_device
from membench.capture.capture import Captures
from membench.core import configuration, distributed
from membench.core.checks import choice
from membench.core.cluster import ALONE, Cluster
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.record import Source
from membench.core.schedule import RepeatedSchedule, Schedule
from membench.core.task_graph import TaskGraph
from membench.core.units import parse_bytes
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.execution.cuda_graph import with_staged_arguments
from membench.planning.exchange import Exchange, exchange_in_last_run
from membench.profiling.cache import load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.operators import OutputMismatch
from membench.steps.compiled_step import CompiledStep, as_tuple
from membench.steps.micro_batched_step import MicroBatchedStep
from membench.steps.placement import place
from membench.steps.plan import plan_step
from membench.steps.simulated_step import SimulatedStep, check_capacity, simulated_step
from membench.strategies.base import Strategy, find_strategy


def compile(  # noqa: A001 (the field's word for it)
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    strategy: str | Strategy = "eager",
    backend: str = "cpu",
    device: str | DeviceProfile | None = None,
    cluster: str | Cluster = ALONE,
    budget: str | int | None = None,
    micro_batch: int | str | None = None,
    exchange: str | None = None,
    cuda_graph: bool = False,
) -> CompiledStep | MicroBatchedStep | SimulatedStep:
    """Capture a step of training or of inference and put it under a memory strategy.

    Args:
        module: the network, in the mode (training or evaluation) in which the step is to run.
        loss: called with the module's output and the targets; returns a scalar, for micro-batches a mean over the samples
            (one that ignores some targets is none: its micro-batches count alike, whatever each ignores).
            None: inference; the step returns what the module does.
        batch: example ``(inputs, targets)``, each a tensor or a tuple (inference has no targets: ``(inputs, ())``); the
            step is made for their shapes. What is no tensor has the same value in every step.
        strategy: a name (``"layrub_hybrid"``) or an instance.
        backend: ``"cpu"`` and ``"cuda"`` run for real. A GPU's step moves the module, as ``module.to`` would: to the GPU,
            or to page-locked host memory what the strategy keeps there. ``"simulated"`` plays the step on
            `device`, at any size, allocating nothing; module and batch may then be on the meta device.
        device: for the simulated backend: a name (``"k40m"``) or a profile.
        cluster: for the simulated backend: how many such devices there are, each with a batch like this one, and how
            they are joined; a name (``"modnn_k40x4"``) or a description.
        budget: the most that the step may hold, weights and inputs included: ``"200 MB"`` or bytes.
        micro_batch: how many samples to compute at a time; ``"fitted"`` for the most that Equation 8 of moDNN finds room
            for, or ``"fastest"`` for those with which a step takes the least time, which plans each size from there on. By
            default as the strategy says, which for most is the whole batch.
        exchange: for the processes of torch's default group, each of which compiles with its share of a batch, and for
            a cluster: average their gradients ``"as_made"`` or ``"at_end"`` (moDNN, Section 6.2), so that ``.grad`` is the whole batch's.
            All start from the first one's weights and buffers, and run its schedule; the loss is the share's own.
        cuda_graph: for the cuda backend: replay the step as one CUDA graph, for models bound by launches.

    Raises:
        UnsupportedModel: the module cannot be captured, or a weight's gradient has a hook; names the layer.
        UnsupportedStrategy: no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget; names what it needs and the lower bound.
        OutOfMemory: the step does not fit the simulated device.
        ExchangeFailed: another process has ended, or did not answer in time; steps raise it too.
        MembenchError: an argument is not what is said above, or does not go with the backend; there is no GPU, or no
            group of processes to exchange with.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise MembenchError(
            "the batch is a pair (inputs, targets), each a tensor or a tuple; of inference it is (inputs, ())"
        )
    workload = Workload(type(module).__name__, module, loss, as_tuple(batch[0]), as_tuple(batch[1]))
    chosen = find_strategy(strategy)() if isinstance(strategy, str) else strategy
    if not isinstance(chosen, Strategy):
        raise MembenchError(f"the strategy is a name or an instance of a Strategy, not {strategy!r}")
    budget_bytes = None if budget is None else _parse_budget(budget)
    when = None if exchange is None else choice(Exchange, "exchange", exchange)
    if backend not in ("cpu", "cuda", "simulated"):
        raise MembenchError(f"there is no backend {backend!r}; choose one of cpu, cuda, simulated")
    if cuda_graph and backend != "cuda":
        raise MembenchError("cuda_graph=True needs backend='cuda'; leave it out")
    if Source.of(backend) is Source.SIMULATED:
        return _simulate(workload, chosen, device, cluster, budget_bytes, micro_batch, when)
    if device is not None or cluster != ALONE:
        raise MembenchError(
            f"device and cluster belong to backend='simulated', and this is {backend!r}; leave them out"
        )
    target = real_device(backend)
    for name, weight in module.named_parameters():
        if weight.device.type not in ("cpu", target.type):
            raise UnsupportedModel(
                name, f"its weight is not on {target}", "move the module there, or simulate it"
            )
    cache = load_cache(target) if backend == "cuda" else None
    measured = MeasuredCost(target, cache, cuda_graph=cuda_graph)
    return build_step(
        Captures(workload, target),
        chosen,
        measured,
        budget_bytes,
        micro_batch=micro_batch,
        exchange=when,
        cuda_graph=cuda_graph,
    )


def _simulate(
    workload: Workload,
    strategy: Strategy,
    device: str | DeviceProfile | None,
    cluster: str | Cluster,
    budget_bytes: int | None,
    micro_batch: int | str | None,
    exchange: Exchange | None,
) -> SimulatedStep:
    profile = _find_device(device)
    joined = cluster if isinstance(cluster, Cluster) else configuration.load("cluster", cluster)
    cost = RooflineCost(joined.loaded(profile), configuration.load("framework", "pytorch").efficiency)
    graph_at = Captures(workload).graph_at
    parts = plan_step(graph_at, workload.batch_size, strategy, cost, budget_bytes, micro_batch)
    if joined.devices > 1:
        parts = exchange_in_last_run(parts, exchange or Exchange.AS_MADE)
    check_capacity(parts, profile)
    return simulated_step(parts, cost, joined)


def build_step(
    captures: Captures,
    strategy: Strategy,
    cost: MeasuredCost,
    budget_bytes: int | None,
    *,
    micro_batch: int | str | None = None,
    exchange: Exchange | None = None,
    cuda_graph: bool = False,
) -> CompiledStep | MicroBatchedStep:
    """Put a workload under a strategy, to be run on the device whose costs are measured.

    Raises:
        MembenchError: there are no processes to exchange with; and see `compile`.
    """
    batch_size = captures.workload.batch_size

    def graph_at(size: int) -> TaskGraph:
        graph = graph_as_run(captures, cost, size)
        return with_staged_arguments(graph) if cuda_graph else graph

    def make_plan() -> tuple[RepeatedSchedule, ...]:
        parts = plan_step(graph_at, batch_size, strategy, cost, budget_bytes, micro_batch)
        return exchange_in_last_run(parts, exchange) if exchange else parts

    if exchange:
        distributed.take_over(captures.workload.module.to(cost.device))
        # measured times differ, and with them what a strategy decides; the processes must meet in one order
        parts = distributed.from_first(make_plan, "the schedule")
    else:
        parts = make_plan()
    sizes = [part.schedule.graph.batch_size for part in parts]
    backends = [real_backend(part.schedule, cost.device) for part in parts]
    workload = place(captures.workload, captures.at(sizes[0]), backends[0])
    loss = None if sizes == [batch_size] else _zero_loss(parts[0].schedule, cost.device)
    pool = torch.cuda.graph_pool_handle() if cuda_graph else None
    steps = tuple(
        CompiledStep(
            workload.of_size(size),
            captures.at(size),
            part.schedule,
            backend,
            graph_pool=pool,
            loss_so_far=loss,
        )
        for part, size, backend in zip(parts, sizes, backends, strict=True)
    )
    return steps[0] if loss is None else MicroBatchedStep(workload, parts, steps, loss)


def graph_as_run(captures: Captures, cost: MeasuredCost, size: int) -> TaskGraph:
    """Return a graph whose operators return on the device what it says, captured again until that is so.

    Raises:
        UnsupportedModel: an operator goes on to return something else.
    """
    while True:
        graph = captures.graph_at(size)
        try:
            cost.annotate(graph)
        except OutputMismatch as found:
            if not captures.learn(size, found.outputs):
                raise
        else:
            return graph


def _zero_loss(schedule: Schedule, device: torch.device) -> Tensor:
    assert schedule.graph.loss is not None
    return torch.zeros((), dtype=schedule.graph.loss.dtype, device=device)


def _parse_budget(budget: str | int) -> int:
    try:
        return parse_bytes(budget)
    except ValueError as error:
        raise MembenchError(f"budget: {error}") from error


def _find_device(device: str | DeviceProfile | None) -> DeviceProfile:
    if isinstance(device, DeviceProfile):
        return device
    if device is None:
        known = ", ".join(configuration.names("device"))
        raise MembenchError(f"the simulated backend needs a device; choose one of {known}")
    profile: DeviceProfile = configuration.load("device", device)
    return profile
