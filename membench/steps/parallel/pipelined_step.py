"""A step of one rank of a pipeline that runs: its stages of a module, on all micro-batches of a batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn

from membench.backends.real import real_backend
from membench.capture.capture import CapturedStep, Captures
from membench.core.errors import MembenchError
from membench.core.graph.schedule import Schedule
from membench.core.step.pipeline import Pipeline, PipelineSchedule
from membench.core.step.workload import Workload, share_size
from membench.planning.parallel.pipeline import ALL, RankOfPipeline, pipelined
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.parallel.blocks import pipeline_of, repeated_classes
from membench.steps.plan import StepPlanner
from membench.steps.real.as_run import graph_as_run
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.placement import place_module
from membench.steps.real.real_update import real_update
from membench.steps.request import StepRequest


class Pipelined(nn.Module):
    """A module for `membench.compile` whose stages processes run; each has all of it, and uses its stages' weights.

    Args:
        module: the network.
        micro_batches: number of micro-batches of a step, equal parts of its batch.
        group: the processes; None: all of them.
        pipeline, stages, wrapped: see `membench.predict`.

    Raises:
        MembenchError: there is no process group, or the module cannot be divided.
    """

    def __init__(
        self,
        module: nn.Module,
        micro_batches: int,
        *,
        group: "dist.ProcessGroup | None" = None,
        pipeline: str = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
        stages: int | None = None,
        wrapped: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise MembenchError(
                "there is no group of processes for a pipeline; start them with torchrun and call "
                "torch.distributed.init_process_group"
            )
        self.module = module
        self.group = group or dist.group.WORLD
        classes = repeated_classes(module) if wrapped is None else frozenset(wrapped)
        ranks = dist.get_world_size(self.group)
        self.pipeline = pipeline_of(module, classes, ranks, pipeline, stages, micro_batches)

    def forward(self, *inputs: Any) -> Any:
        """Refuse to run outside of a step.

        Raises:
            MembenchError: always.
        """
        raise MembenchError("a pipelined module runs as a step: membench.compile(module, loss, batch)")


class PipelinedStep(CompiledStep):
    """A rank's step, called with the whole batch; the last stage's process returns the loss, others None."""

    def __init__(
        self,
        workload: Workload,
        captured: CapturedStep,
        rank: RankOfPipeline,
        pipeline: Pipeline,
        schedule: Schedule,
        backend: Any,
        update: Any = None,
        applied: Any = None,
    ) -> None:
        parts = {
            block: tuple(rank.callers.get((block, number)) for number in range(pipeline.micro_batches))
            for block in (*captured.inputs, *captured.targets)
            if block is not None
        }
        super().__init__(
            workload, of_rank(captured, rank), schedule, backend, update=update, applied=applied, parts=parts
        )


def of_rank(captured: CapturedStep, rank: RankOfPipeline) -> CapturedStep:
    """Return the binding of a rank's blocks to the module; arguments keep the blocks of the micro-batch's graph."""

    def own(blocks: dict[str, int]) -> dict[str, int]:
        return {name: rank.callers[block, ALL] for name, block in blocks.items() if (block, ALL) in rank.callers}

    constants = {
        rank.callers[block, ALL]: tensor for block, tensor in captured.constants.items() if (block, ALL) in rank.callers
    }
    return replace(
        captured, graph=rank.graph, weights=own(captured.weights), buffers=own(captured.buffers), constants=constants
    )


def build_pipelined_step(
    workload: Workload, wrapped: Pipelined, cost: MeasuredCost, options: StepRequest
) -> PipelinedStep:
    """Put a rank's step under a strategy.

    Args:
        workload: the whole batch, on the module that is wrapped.

    Raises:
        MembenchError: the batch cannot be divided equally.
        UnsupportedModel: see `Workload.of_size` and `pipelined`.
    """
    pipeline = wrapped.pipeline
    size = share_size(workload.batch_size, pipeline.micro_batches)
    micro_batch = replace(workload.of_size(size), accumulates=False, loss_scale=1 / pipeline.micro_batches)
    captures = Captures(micro_batch, cost.device, runs_again=True)
    graph = graph_as_run(captures, cost, size)
    rank = pipelined(graph, pipeline)[dist.get_rank(wrapped.group)]
    update = real_update(options.optimizer, workload.module, cost) if options.optimizer else None
    batch_size = workload.batch_size
    [run] = StepPlanner(
        {batch_size: rank.graph}.__getitem__, batch_size, options.strategy, cost, update=update, micro_batch=batch_size
    ).within(options.budget_bytes)
    backend = real_backend(run.schedule, cost.device, {pipeline.axis: wrapped.group})
    backend.disk_folder = cost.disk_folder
    backend.tensors.update = applied = update.of(run.schedule) if update else None
    captured = captures.at(size)
    place_module(workload.module, of_rank(captured, rank), backend)
    return PipelinedStep(workload, captured, rank, pipeline, run.schedule, backend, update, applied)
