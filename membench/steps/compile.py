"""The library entry: `membench.compile` turns a step into one with a memory strategy.

capture -> annotate with the device's costs -> strategy -> validate -> a step that runs or simulates
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from membench.backends.real import check_products, real_backend, real_device
from membench.capture.capture import Captures
from membench.capture.update import CapturedUpdate
from membench.core import configuration, distributed
from membench.core.checks import choice
from membench.core.cluster import SINGLE_DEVICE, Cluster
from membench.core.device import DeviceProfile, as_device
from membench.core.errors import MembenchError
from membench.core.kernels import Kernels
from membench.core.machine import Machine
from membench.core.optimizer import UpdateOf
from membench.core.record import Source
from membench.core.task_graph import TaskGraph
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.execution.cuda_graph import with_staged_arguments
from membench.planning.parallel.exchange import Exchange, exchange_in_last_run, update_before
from membench.planning.rewrites.update import updated_workload
from membench.profiling.cache import load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.arguments import (
    OptimizerLike,
    as_bytes,
    as_cluster,
    as_machine,
    as_strategy,
    as_update,
    workload_of,
)
from membench.steps.compile_checks import (
    check_divided,
    check_host,
    check_kernels,
    check_placement,
    check_together,
)
from membench.steps.options import StepOptions
from membench.steps.parallel.pipelined_step import Pipelined, build_pipelined_step
from membench.steps.parallel.real_ranks import RealRanks, check_options, real_ranks
from membench.steps.plan import Runs, plan_step, plan_to_fit
from membench.steps.predicted.as_run import graph_as_run
from membench.steps.predicted.fused_graphs import compiled_parts, step_graphs
from membench.steps.predicted.simulated_step import SimulatedStep, check_capacity, simulated_step
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.kept_steps import Shapes
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.real.placement import place_workload
from membench.steps.real.shaped_step import ShapedStep
from membench.steps.real.update import real_update
from membench.strategies.base import Strategy


def compile(  # noqa: A001 (the field's term)
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    strategy: str | Strategy = "eager",
    backend: str = "cpu",
    device: str | DeviceProfile | None = None,
    cluster: str | Cluster = SINGLE_DEVICE,
    budget: str | float | None = None,
    machine: str | Machine | None = None,
    host_memory: str | float | None = None,
    disk: str | Path | None = None,
    micro_batch: int | str | None = None,
    exchange: str | None = None,
    optimizer: OptimizerLike = None,
    precision: str | None = None,
    channels_last: bool = False,
    cuda_graph: bool = False,
    shapes: str = "fixed",
    kernels: str | None = None,
) -> CompiledStep | MicroBatchedStep | ShapedStep | SimulatedStep:
    """Capture a step of training or inference and put it under a memory strategy.

    Args:
        module: the network, in the mode (training or evaluation) in which the step is to run. One that torch's `fully_shard` or
            `DistributedDataParallel` has wrapped runs on its share of a batch in each process of its mesh, and leaves in ``.grad``
            what ``loss.backward()`` would; all processes compile it, with the same options. One in `membench.Pipelined` runs its stages
            on the whole batch, which each process passes.
        loss: called with the module's output, of any type, and the targets; returns a scalar, for micro-batches a mean over the samples
            (not over the targets that are not ignored: micro-batches of equal size have equal weight).
            None: inference; the step returns the module's output.
        batch: example ``(inputs, targets)``, each a tensor, a tuple, or a dict of arguments by name (inference has no
            targets: ``(inputs, ())``); an argument may be tuples, lists and dicts of tensors. The step is made for their
            shapes. What is not a tensor has the same value in every step.
        strategy: a name (``"layrub_hybrid"``) or an instance.
        backend: ``"cpu"`` and ``"cuda"`` run the step for real. ``"cuda"`` moves the module as ``module.to`` would: to the
            GPU, or to page-locked host memory if the strategy keeps its weights there. ``"simulated"`` simulates the step
            on `device`, at any size, without allocating anything; module and batch may then be on the meta device.
        device: for the simulated backend: a name (``"k40m"``) or a profile.
        cluster: for the simulated backend: the number of such devices, each with a batch like this one, and their links;
            a name (``"modnn_k40x4"``) or a description.
        budget: the most device memory that the step may hold, including weights and inputs: ``"200 MB"``
            (1 MB is 1024 x 1024 bytes) or a number of bytes. None: on a simulated device what it has, where the step needs more
            without a budget; otherwise no limit.
        machine: for the simulated backend: the machine that the device is in; see `membench.predict`.
        host_memory: the most that the step may hold in host memory, ``"64 GB"`` or a number of bytes; what does not fit is kept on
            a disk: weights and the optimizer's states, in a real step the states alone (see `RealStep.restore`). None: what a
            simulated device's machine has, in a real step any number of bytes.
        disk: for a real step: an existing folder on that disk, for a file that vanishes with the process. None: the folder for
            temporary files.
        micro_batch: number of samples to compute at a time; ``"fitted"`` for the most that Equation 8 of moDNN finds room
            for, or ``"fastest"`` for those with which a step takes the least time, which plans each size from there on.
            None: the strategy chooses, most strategies the whole batch.
        exchange: for the processes of torch's default group, each of which compiles with its share of a batch, and for
            a cluster: average their gradients ``"as_made"`` or ``"at_end"`` (moDNN, Section 6.2), so that ``.grad`` is the
            whole batch's. All start from the first process's weights and buffers, and run its schedule; the loss is the
            share's.
        optimizer: updates the weights in the step, after its last micro-batch and any exchange; see `membench.predict`. A real
            step steps the instance, or one that it makes of all of the module's weights. None: the step ends with the
            gradients.
        precision: ``"bf16"`` and ``"fp16"`` run the whole step in half precision, ``"amp_bf16"`` and ``"amp_fp16"`` its forward
            pass and loss within ``torch.autocast``; ``"tf32"`` rounds products' factors on a GPU, ``"fp32"`` nothing. None: as
            the module is, with torch's default, in which convolutions on a GPU round theirs. A real step converts the module
            as ``module.to`` would, and takes inputs of that dtype; a simulated one leaves it alone.
        channels_last: weights and inputs with four dimensions have that memory format; of a real step, the module's too.
        cuda_graph: for the cuda backend: replay the step as one CUDA graph, for models bound by launches.
        shapes: ``"fixed"`` refuses batches that are not like the example; ``"any"`` captures and plans each new kind of a real
            step's batch when it first gets one, and keeps up to `membench.steps.real.kept_steps.MOST_KEPT` of them, each with its
            first batch.
        kernels: ``"eager"`` runs PyTorch's operators, bit for bit. ``"inductor"`` fuses them as `torch.compile` does, and
            schedules the fused ones (`membench.planning.fusion.graph`): on the CPU, with random numbers as eager PyTorch draws them, and
            simulated. Results differ from eager's by what fusing rounds, and not between strategies. On the CPU convolutions are faster
            with `channels_last`, to which `torch.compile` changes them by itself. None: ``"eager"``; a simulated step is compiled
            where its module and loss were given to `torch.compile`, see `membench.predict`.

    Raises:
        UnsupportedModel: the module cannot be captured, or a weight's gradient has a hook; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget, or the limit of host memory; contains the bytes that it needs.
        OutOfMemory: the step does not fit the simulated device.
        DiskFailed: the disk has less room than the step needs; in a step also where it is broken.
        ExchangeFailed: another process has ended, or did not answer in time; steps raise it too.
        MembenchError: an argument is invalid or does not match the backend; there is no GPU, or no process group.
    """
    check_together(backend, exchange, device, cluster, machine, optimizer, shapes, cuda_graph)
    check_host(backend, host_memory, disk, shapes, cuda_graph)
    options = StepOptions(
        as_strategy(strategy),
        as_bytes(budget),
        micro_batch,
        None if exchange is None else choice(Exchange, "exchange", exchange),
        as_update(optimizer),
        None if kernels is None else choice(Kernels, "kernels", kernels),
        cuda_graph,
    )
    stages = module if isinstance(module, Pipelined) else None
    module, ranks = real_ranks(module if stages is None else stages.module)
    if ranks or stages:
        wrapper = ranks.wrapper if ranks else "Pipelined"
        check_options(wrapper, backend, exchange, precision, shapes, channels_last=channels_last)
    check_kernels(options.kernels, backend, is_shared=bool(ranks or stages))
    host_memory_bytes = as_bytes(host_memory, "host_memory")

    def workload_at(example: tuple[Any, Any]) -> Workload:
        return workload_of(module, loss, example, precision=precision, channels_last=channels_last)

    workload = workload_at(batch)
    if Source.of(backend) is Source.SIMULATED:
        inside = as_machine(machine, host_memory_bytes)
        return _simulate(workload, options, as_cluster(cluster, device=as_device(device)), inside)
    if ranks is None:
        check_divided(module, exchange, optimizer)
    target = real_device(backend)
    check_products(workload.precision, target)
    check_placement(module, target)
    measured = MeasuredCost(
        target,
        load_cache(target) if backend == "cuda" else None,
        cuda_graph=cuda_graph,
        host_memory_bytes=host_memory_bytes,
        disk_folder=None if disk is None else Path(disk),
    )

    def build(inputs: Any, targets: Any) -> CompiledStep | MicroBatchedStep:
        whole = workload_at((inputs, targets))
        if stages:
            return build_pipelined_step(whole, stages, measured, options)
        captures = Captures(updated_workload(whole.converted(), options.optimizer), target)
        return build_step(captures, measured, options, ranks)

    return build(*batch) if shapes == Shapes.FIXED else ShapedStep(build, module, *batch)


def _simulate(workload: Workload, options: StepOptions, cluster: Cluster, machine: Machine) -> SimulatedStep:
    framework, device = configuration.load("framework", "pytorch"), cluster.profile
    cost = RooflineCost(cluster.loaded, framework.efficiency, machine)
    known, compiled = compiled_parts(workload.module, workload.loss, options.kernels)
    by = options.optimizer
    captures = Captures(updated_workload(replace(workload, compiled=known), by), framework.captured_on)
    graph_at = step_graphs(captures, compiled).graph_at
    captured = None if by is None else CapturedUpdate(by, workload.module)
    update = update_before(options.exchange if cluster.devices > 1 else None, captured)

    def plan(budget_bytes: int | None) -> Runs:
        size, micro_batch = workload.batch_size, options.micro_batch
        return plan_step(graph_at, size, options.strategy, cost, budget_bytes, micro_batch, update)

    def excess_bytes(runs: Runs) -> int:
        return max(0, max(run.schedule.peak_bytes for run in runs) - device.memory_bytes)

    runs = plan(options.budget_bytes)
    if options.budget_bytes is None:
        runs = plan_to_fit(plan, excess_bytes, device.memory_bytes)
    if cluster.devices > 1:
        runs = exchange_in_last_run(runs, options.exchange or Exchange.AS_MADE)
    check_capacity(runs, device)
    return simulated_step(runs, cost, cluster)


def build_step(
    captures: Captures, cost: MeasuredCost, options: StepOptions, ranks: RealRanks | None = None
) -> CompiledStep | MicroBatchedStep:
    """Put a workload under a strategy, to run on the device whose costs are measured.

    Args:
        captures: of the workload; see `updated_workload`.
        ranks: that divide or repeat the module's weights; None: there is one.

    Raises:
        UnsupportedStrategy: the strategy keeps weights or an optimizer's states in host memory.
        MembenchError: there is no process group to exchange with; see also `compile`.
    """
    update = real_update(options.optimizer, captures.workload.module, cost) if options.optimizer else None
    if update and options.cuda_graph:
        raise MembenchError(
            "a CUDA graph does not contain the optimizer's step; leave cuda_graph or optimizer out"
        )
    if options.exchange:
        distributed.broadcast_state(captures.workload.module.to(cost.device))
    runs = _planned(captures, cost, options, ranks, update)
    sizes = [run.schedule.graph.batch_size for run in runs]
    groups = ranks.groups if ranks else {}
    backends = [real_backend(run.schedule, cost.device, groups) for run in runs]
    for backend in backends:
        backend.disk_folder = cost.disk_folder
    if update:
        for run, backend in zip(runs, backends, strict=True):
            backend.tensors.update = update.of(run.schedule)
    workload = place_workload(captures.workload, captures.at(sizes[0]), backends[0])
    if update:
        update.follow_weights()
    loss = _loss_accumulator(runs[0].schedule.graph, workload.of_size(sizes[0]), cost.device)
    pool = torch.cuda.graph_pool_handle() if options.cuda_graph else None
    steps = tuple(
        CompiledStep(
            workload.of_size(size),
            captures.at(size),
            run.schedule,
            backend,
            graph_pool=pool,
            loss_accumulator=loss,
            update=update,
            begin=ranks.begin if ranks else None,
        )
        for run, size, backend in zip(runs, sizes, backends, strict=True)
    )
    return steps[0] if loss is None else MicroBatchedStep(workload, runs, steps, loss, update)


def _planned(
    captures: Captures,
    cost: MeasuredCost,
    options: StepOptions,
    ranks: RealRanks | None,
    update: UpdateOf | None,
) -> Runs:
    """Return the schedules of a step, which are those of the first process where several exchange."""
    batch_size, exchange = captures.workload.batch_size, options.exchange

    def graph_at(size: int) -> TaskGraph:
        graph = graph_as_run(captures, cost, size, options.kernels or Kernels.EAGER)
        if ranks:
            return ranks.graph_of_rank(graph, batch_size)
        return with_staged_arguments(graph) if options.cuda_graph else graph

    def plan() -> Runs:
        planned = update_before(exchange, update)
        budget_bytes, micro_batch = options.budget_bytes, options.micro_batch
        runs = plan_step(graph_at, batch_size, options.strategy, cost, budget_bytes, micro_batch, planned)
        return exchange_in_last_run(runs, exchange) if exchange else runs

    # measured times differ between processes, and so may plans; all must exchange in one order
    return distributed.from_first(plan, "the schedule") if exchange or ranks else plan()


def _loss_accumulator(graph: TaskGraph, workload: Workload, device: torch.device) -> Tensor | None:
    """Return what micro-batches add their loss to; None for a whole batch."""
    if not workload.accumulates:
        return None
    assert graph.loss is not None
    return torch.zeros((), dtype=graph.loss.dtype, device=device)
