"""The library entry: `membench.compile` turns a step into one with a memory strategy.

capture -> annotate with the device's costs -> strategy -> validate -> a step that runs or simulates
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from membench.backends.real import check_products, real_backend, real_device
from membench.capture.capture import Captures
from membench.capture.update.captured_update import CapturedUpdate
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.libraries import distributed
from membench.core.record import Source
from membench.core.step.kernels import Kernels
from membench.core.step.optimizer import UpdateOf
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.execution.cuda_graph import with_staged_arguments
from membench.planning.parallel.exchange import exchange_in_last_run, update_before
from membench.planning.rewrites.update import updated_workload
from membench.profiling.cache import load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.arguments import Batch, as_bytes, as_folder, workload_of
from membench.steps.compile_checks import check_divided, check_kernels, check_placement, check_together
from membench.steps.keywords import CompileKeywords, check_is_module, check_keywords, takes, workload_options
from membench.steps.parallel.pipelined_step import Pipelined, build_pipelined_step
from membench.steps.parallel.real_ranks import RealRanks, check_options, real_ranks
from membench.steps.plan import Runs, StepPlanner
from membench.steps.predicted.fused_graphs import compiled_parts, step_graphs
from membench.steps.real.as_run import graph_as_run
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.kept_steps import Shapes
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.real.placement import place_workload
from membench.steps.real.real_update import real_update
from membench.steps.real.shaped_step import ShapedStep
from membench.steps.request import Hardware, StepRequest
from membench.steps.simulated_step import SimulatedStep, check_capacity, cluster_step


@takes(CompileKeywords)
def compile(  # noqa: A001 (the field's term)
    module: nn.Module, loss: Callable[..., Tensor] | None, batch: Batch, **options: Unpack[CompileKeywords]
) -> CompiledStep | MicroBatchedStep | ShapedStep | SimulatedStep:
    """Capture a step of training or inference and put it under a memory strategy.

    Args:
        module: the network, in the mode (training or evaluation) in which the step is to run. One that torch's
            `fully_shard` or `DistributedDataParallel` has wrapped runs on its share of a batch in each process of its
            mesh, and leaves in ``.grad`` what ``loss.backward()`` would; all processes compile it, with the same
            options. One in `membench.Pipelined` runs its stages on the whole batch, which each process passes.
        loss: called with the module's output, of any type, and the targets; returns a scalar, for micro-batches a mean
            over the samples (not over the targets that are not ignored: micro-batches of equal size have equal weight).
            None: inference; the step returns the module's output.
        batch: example ``(inputs, targets)``, each a tensor, a tuple, or a dict of arguments by name (inference has no
            targets: ``(inputs, ())``); an argument may be tuples, lists and dicts of tensors. The step is made for
            their shapes. What is not a tensor has the same value in every step.
        options: see `membench.steps.keywords.CompileKeywords`; by default the strategy is ``"eager"``, the backend
            ``"cpu"``, and shapes are ``"fixed"``.

    Raises:
        UnsupportedModel: the module cannot be captured, or a weight's gradient has a hook; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget, or the limit of host memory; contains the bytes that it
            needs.
        OutOfMemory: the step does not fit the simulated device.
        DiskFailed: the disk has less room than the step needs; in a step also where it is broken.
        ExchangeFailed: another process has ended, or did not answer in time; steps raise it too.
        MembenchError: an argument is invalid or does not match the backend; there is no GPU, or no process group.
    """
    check_is_module(module)
    check_keywords(CompileKeywords, options, "compile")
    backend, shapes = options.get("backend") or "cpu", options.get("shapes") or Shapes.FIXED
    precision, channels_last = options.get("precision"), options.get("channels_last", False)
    check_together(backend, shapes, options)
    request = StepRequest.of(options, strategy="eager")
    stages = module if isinstance(module, Pipelined) else None
    module, ranks = real_ranks(module if stages is None else stages.module)
    if ranks or stages:
        wrapper = ranks.wrapper if ranks else "Pipelined"
        check_options(wrapper, backend, options.get("exchange"), precision, shapes, channels_last=channels_last)
    check_kernels(request.kernels, backend, is_shared=bool(ranks or stages))

    def workload_at(example: Batch) -> Workload:
        return workload_of(module, loss, example, **workload_options(options))

    workload = workload_at(batch)
    if Source.of(backend) is Source.SIMULATED:
        return _simulate(workload, request, Hardware.of(options))
    if ranks is None:
        check_divided(module, request)
    target = real_device(backend)
    check_products(workload.precision, target)
    check_placement(module, target)
    measured = MeasuredCost(
        target,
        load_cache(target) if backend == "cuda" else None,
        cuda_graph=request.cuda_graph,
        host_memory_bytes=as_bytes(options.get("host_memory"), "host_memory"),
        disk_folder=as_folder(options.get("disk")),
    )

    def build(inputs: Any, targets: Any) -> CompiledStep | MicroBatchedStep:
        whole = workload_at((inputs, targets))
        if stages:
            return build_pipelined_step(whole, stages, measured, request)
        captures = Captures(updated_workload(whole.converted(), request.optimizer), target, runs_again=True)
        return build_step(captures, measured, request, ranks)

    return build(*batch) if shapes == Shapes.FIXED else ShapedStep(build, module, *batch)


def _simulate(workload: Workload, request: StepRequest, hardware: Hardware) -> SimulatedStep:
    cluster = hardware.cluster
    framework, device = configuration.load("framework", "pytorch"), cluster.profile
    cost = RooflineCost(cluster.loaded, framework.efficiency, cluster.share_of(hardware.machine))
    known, compiled = compiled_parts(workload.module, workload.loss, request.kernels)
    by = request.optimizer
    captures = Captures(updated_workload(replace(workload, compiled=known), by), framework.captured_on(device))
    graph_at = step_graphs(captures, compiled).graph_at
    captured = None if by is None else CapturedUpdate(by, workload.module)
    update = update_before(request.exchange if cluster.devices > 1 else None, captured)
    planner = StepPlanner(graph_at, workload.batch_size, request.strategy, cost, update, request.micro_batch)

    def excess_bytes(runs: Runs) -> int:
        return max(0, max(run.schedule.peak_bytes for run in runs) - device.memory_bytes)

    local = planner.planned(request.budget_bytes, excess_bytes, device.memory_bytes)
    step = cluster_step(local, cost, cluster, request.exchange)
    check_capacity(step.plan, device)
    return step


def build_step(
    captures: Captures, cost: MeasuredCost, request: StepRequest, ranks: RealRanks | None = None
) -> CompiledStep | MicroBatchedStep:
    """Put a workload under a strategy, to run on the device whose costs are measured.

    Args:
        captures: captures of the workload; see `updated_workload`.
        ranks: ranks that divide or repeat the module's weights; None: there is one.

    Raises:
        UnsupportedStrategy: the strategy keeps weights or an optimizer's states in host memory.
        MembenchError: there is no process group to exchange with; see also `compile`.
    """
    update = real_update(request.optimizer, captures.workload.module, cost) if request.optimizer else None
    if update and request.cuda_graph:
        raise MembenchError("a CUDA graph does not contain the optimizer's step; leave cuda_graph or optimizer out")
    if request.exchange:
        distributed.broadcast_state(captures.workload.module.to(cost.device))
    runs = _planned(captures, cost, request, ranks, update)
    if request.cuda_graph and runs[0].schedule.graph.parts:
        raise MembenchError(
            f"strategy {request.strategy.name!r} has micro-batches layer by layer, each with arguments of its own, of "
            "which a CUDA graph has no copies; leave cuda_graph or micro_batch out"
        )
    sizes = [run.schedule.graph.micro_batch_size for run in runs]
    groups = ranks.groups if ranks else {}
    backends = [real_backend(run.schedule, cost.device, groups) for run in runs]
    for backend in backends:
        backend.disk_folder = cost.disk_folder
    applied = [update.of(run.schedule) if update else None for run in runs]
    for backend, updates in zip(backends, applied, strict=True):
        backend.tensors.update = updates
    workload = place_workload(captures.workload, captures.at(sizes[0]), backends[0])
    if update:
        update.follow_weights()
    loss = _loss_accumulator(runs[0].schedule.graph, workload.of_size(sizes[0]), cost.device)
    pool = torch.cuda.graph_pool_handle() if request.cuda_graph else None
    steps = tuple(
        CompiledStep(
            workload.of_size(run.schedule.graph.batch_size),
            captures.at(size),
            run.schedule,
            backend,
            graph_pool=pool,
            loss_accumulator=loss,
            update=update,
            applied=updates,
            begin=ranks.begin if ranks else None,
        )
        for run, size, backend, updates in zip(runs, sizes, backends, applied, strict=True)
    )
    return steps[0] if loss is None else MicroBatchedStep(workload, runs, steps, loss, update)


def _planned(
    captures: Captures, cost: MeasuredCost, request: StepRequest, ranks: RealRanks | None, update: UpdateOf | None
) -> Runs:
    """Return the schedules of a step, which are those of the first process where several exchange."""
    batch_size, exchange = captures.workload.batch_size, request.exchange

    def graph_at(size: int) -> TaskGraph:
        graph = graph_as_run(captures, cost, size, request.kernels or Kernels.EAGER)
        if ranks:
            return ranks.graph_of_rank(graph, batch_size)
        return with_staged_arguments(graph) if request.cuda_graph else graph

    def plan() -> Runs:
        of_step = batch_size, request.strategy, cost, update_before(exchange, update), request.micro_batch
        runs = StepPlanner(graph_at, *of_step).within(request.budget_bytes)
        return exchange_in_last_run(runs, exchange) if exchange else runs

    # measured times differ between processes, and so may plans; all must exchange in one order
    return distributed.from_first(plan, "the schedule") if exchange or ranks else plan()


def _loss_accumulator(graph: TaskGraph, workload: Workload, device: torch.device) -> Tensor | None:
    """Return what micro-batches add their loss to; None for a whole batch."""
    if not workload.accumulates:
        return None
    assert graph.loss is not None
    return torch.zeros((), dtype=graph.loss.dtype, device=device)
