"""ZeRO-Offload: weights on the device, gradients and the optimizer in host memory, the update on the processor.

Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021. Of all divisions of a training
step between GPU and CPU that move the least, 4 bytes for each weight in half precision, it is the one that needs the
least memory of the GPU (Section 3.5, Table 1):

    for each task of the forward and backward pass, on the GPU:                        (Section 4.1, Figure 5)
        compute it; copy gradients of weights to the host as they are made, in small groups
    for each part of the weights, on the CPU:                                         (Section 5.1, CPU-Adam)
        update it from its gradients; copy it to the GPU

Readings. The program's weights are those of the GPU. In a program in half precision their copies in single precision
are states of its optimizer (`membench.models.megatron`); in one that runs under autocast the weights themselves are in
single precision, and twice as large. Updated weights come to the GPU at the beginning of the next step and not at the
end of this one, each before the task that reads it, where the forward pass hides them; they stay until the backward
pass has ended. The update begins when it has ended, as clipping needs all gradients. What the program recomputes
(checkpointing of its own) is recomputed, as in the paper; activations are not offloaded. Sums of gradients over
micro-batches are in host memory, and visit.

With `delayed` a step uses weights that lack the last update, which the CPU makes during the step from the gradients of
the step before (Section 5.2, one-step delayed parameter update). That is not what the program computes: such a step is
simulated only. Gradients of the step before and weights of the next one are further blocks in host memory; where one
takes the place of another, a program exchanges pointers, and no time passes.

Left out: partitions over several GPUs (Section 4.2): of those one is simulated.

Not `zero_infinity`, whose weights visit the device as well; not `ratel`, which updates in the backward pass.
"""

from dataclasses import replace

from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.schedule import DELAYED_STEPS, Schedule
from membench.core.graph.task_graph import Block, HostLocation, Kind, Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import as_written
from membench.strategies.base import Strategy
from membench.strategies.host_states import (
    DEEPSPEED_BUCKET_BYTES,
    Leaving,
    applied_gradients,
    compute_as_written,
    last_touched_by,
    states_on_host,
    update,
)


class ZeroOffload(Strategy):
    """ZeRO-Offload: gradients and states on the host, which updates the weights.

    Ren et al. 2021, Sections 3.5 and 4.1.

    Args:
        bucket_bytes: size of gradients that the device holds while they leave.
        delayed: the update is that of the step before, during the step (Section 5.2).
    """

    name = "zero_offload"
    moves_weights = True

    def __init__(self, bucket_bytes: int = DEEPSPEED_BUCKET_BYTES, delayed: bool = False) -> None:
        self._bucket_bytes, self._delayed = bucket_bytes, delayed

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = states_on_host(as_written(graph, cost))
        if self._delayed:
            graph = _with_delayed_update(graph)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        passes = [task for task in graph.tasks if task.phase is not Phase.UPDATE]
        delayed = graph.tasks[: passes[0].index]
        for task in delayed:
            builder.compute(task)
        weights = {block.index for block in graph.blocks if block.role is Role.WEIGHT and block.host_location}
        sums = {block for task in passes for block in task.writes if graph.blocks[block].host_location}  # of gradients
        for weight in dict.fromkeys(block for task in passes for block in task.reads if block in weights):
            builder.prefetch(weight)
        leaving = Leaving(builder, self._bucket_bytes)
        finished = last_touched_by(passes, applied_gradients(graph) | sums)
        for task in passes:
            compute_as_written(builder, task)
            leaving.send(finished.get(task.index, ()))
        leaving.send(weights)
        leaving.finish()
        update(builder, graph.tasks[passes[-1].index + 1 :])
        return replace(builder.finish(), decisions=((DELAYED_STEPS, 1.0),) if delayed else ())


def _with_delayed_update(graph: TaskGraph) -> TaskGraph:
    """Return the graph whose update on the host, its first tasks, takes the gradients of the step before.

    It makes the weights of the next step; the last tasks keep the step's gradients for it.
    """
    updates = [task for task in graph.tasks if task.on_host]
    if not updates:
        return graph
    written = {block for task in updates for block in task.writes}
    made = [block for block in graph.blocks if block.role is Role.WEIGHT and block.index in written]
    gradients = sorted(applied_gradients(graph))
    blocks = list(graph.blocks)

    def further(index: int, name: str) -> int:
        """Add a block like another one, whose home is host memory and which passes from step to step."""
        own, location = graph.blocks[index], HostLocation(len(blocks))
        blocks.append(Block(len(blocks), f"{own.name}:{name}", own.size_bytes, Role.OPTIMIZER_STATE, -1, location))
        return len(blocks) - 1

    renamed = {block.index: further(block.index, "next") for block in made}
    previous = {gradient: further(gradient, "previous") for gradient in gradients}
    keeping = [
        Task(
            index=-1, name=f"keep {graph.blocks[gradient].name}",
            kind=Kind.OTHER, phase=Phase.UPDATE, layer=updates[0].layer,
            reads=(gradient,), writes=(block,), creates=(), launches=0, on_host=True,
        )
        for gradient, block in previous.items()
    ]  # fmt: skip
    delayed = [rename_blocks(task, renamed | previous) for task in updates]
    others = [task for task in graph.tasks if not task.on_host]
    return replace(graph, blocks=tuple(blocks), tasks=numbered([*delayed, *others, *keeping]))
