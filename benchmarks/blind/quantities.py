"""Quantities of the papers' tables from cells: largest batches and depths, tensors, recomputations, speed."""

from collections.abc import Callable
from itertools import accumulate

from benchmarks.blind.cells import Case
from membench.core.graph.schedule import Compute, Schedule
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, Kind, Phase, Role, Task
from membench.core.record import Configuration, Outcome, Record
from membench.core.units import MIB
from membench.planning.memory.liveness import live_bytes
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.graphs import Graphs
from membench.sweep.cells.run import run_cell
from membench.sweep.cells.simulated import planned_step
from membench.sweep.largest_batch import decided
from membench.sweep.limits import by_line, largest

DATA_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT, Role.LOSS})
"""Of tensors that the paper counts: outputs of layers and their gradients."""

DEPTH_BLOCKS = (6, 32, 6)
"""SuperNeurons, Table 4: bottlenecks of the first, second and fourth stage."""

DEPTH_BATCH_SIZE = 16


def largest_batch(case: Case, batch_size: int | None) -> int | None:
    """Return the largest batch that fits the device, to the single sample."""
    return _largest(case.configuration)


def greatest_depth(case: Case, batch_size: int | None) -> int | None:
    """Return the greatest depth of the residual network whose third stage grows."""
    first, second, fourth = DEPTH_BLOCKS

    def configuration(third: int) -> Configuration:
        return case.configuration(DEPTH_BATCH_SIZE, [first, second, third, fourth])

    third = _largest(configuration)
    return None if third is None else 3 * (sum(DEPTH_BLOCKS) + third) + 2


def _largest(configuration: Callable[[int], Configuration]) -> int | None:
    """Return the largest number whose cell fits, to 1; the search starts where a line through two small cells ends."""
    tried: dict[int, Record] = {}

    def probe(number: int) -> Record:
        if number not in tried:
            tried[number] = decided(run_cell(configuration(number)))
        return tried[number]

    def point(number: int) -> tuple[int, float]:
        metrics = probe(number).metrics
        return number, metrics.get("used_bytes", metrics["required_memory_bytes"])

    capacity_bytes = probe(4).metrics["capacity_bytes"]
    guess = by_line(point(4), point(8), capacity_bytes)
    return largest(lambda number: probe(number).outcome is Outcome.OK, guess=guess)


def images_per_s(case: Case, batch_size: int | None) -> float:
    """Return the speed of a simulated step."""
    return decided(run_cell(case.configuration(_given(batch_size)))).metrics["images_per_s"]


def tensor_peak_mb(case: Case, batch_size: int | None) -> float:
    """Return the peak of memory in MiB, without what the caller holds: weights, their gradients, the batch."""
    schedule = _schedule(case, batch_size)
    return _without_external_bytes(schedule, schedule.peak_bytes) / MIB


def peak_step(case: Case, batch_size: int | None) -> int:
    """Return the step of the peak: a layer's forward counts from 1, backwards count on from the last layer.

    A copy back and a recomputation belong to the next layer's backward.
    """
    schedule = _schedule(case, batch_size)
    graph = schedule.graph
    used = live_bytes(schedule)
    first = used.index(max(used))
    own = (graph.tasks[each.task] for each in schedule.instructions[first:] if isinstance(each, Compute))
    task = next(task for task in own if not is_recomputed(task))
    layers = len(graph.forward_layers)
    return task.layer + 1 if task.phase is not Phase.BACKWARD else 2 * layers - task.layer


def data_tensors(case: Case, batch_size: int | None) -> int:
    """Return the number of outputs of layers and of their gradients."""
    graph = _schedule(case, batch_size).graph
    return sum(block.role in DATA_ROLES for block in graph.blocks)


def most_live_tensors(case: Case, batch_size: int | None) -> int:
    """Return the greatest number of data tensors that are live at a time, of a schedule without copies."""
    graph = _schedule(case, batch_size).graph
    created = {block: task.index for task in graph.tasks for block in task.creates}
    last = {block: task.index for task in graph.tasks for block in (*task.reads, *task.writes)}
    changes = [0] * (len(graph.tasks) + 1)
    for block, start in created.items():
        if graph.blocks[block].role in DATA_ROLES:
            changes[start] += 1
            changes[last[block] + 1] -= 1
    return max(accumulate(changes))


def greatest_layer_mb(case: Case, batch_size: int | None) -> float:
    """Return the memory of the task that needs the most, without what the caller holds, in MiB."""
    schedule = _schedule(case, batch_size)
    return _without_external_bytes(schedule, schedule.graph.lower_bound_bytes) / MIB


def first_output_mb(case: Case, batch_size: int | None) -> float:
    """Return the size of the first convolution's output in MiB."""
    return _convolution_outputs_mb(case, batch_size)[0]


def second_output_mb(case: Case, batch_size: int | None) -> float:
    """Return the size of the second convolution's output in MiB."""
    return _convolution_outputs_mb(case, batch_size)[1]


def recomputed_layers(case: Case, batch_size: int | None) -> int:
    """Return how many layers of the forward pass run again in a step; a layer of these frameworks is one task."""
    return sum(is_recomputed(task) for task in _schedule(case, batch_size).graph.tasks)


def is_recomputed(task: Task) -> bool:
    return task.name.endswith(RECOMPUTED_SUFFIX)


def _schedule(case: Case, batch_size: int | None) -> Schedule:
    cell = Cell.from_configuration(case.configuration(_given(batch_size)))
    [run] = planned_step(cell, Graphs())
    return run.schedule


def _given(batch_size: int | None) -> int:
    assert batch_size is not None, "the quantity is of one batch size"
    return batch_size


def _without_external_bytes(schedule: Schedule, size_bytes: int) -> int:
    return size_bytes - schedule.graph.external_bytes - schedule.graph.overhead_bytes


def _convolution_outputs_mb(case: Case, batch_size: int | None) -> list[float]:
    graph = _schedule(case, batch_size).graph
    layers = [layer for layer in graph.forward_layers if layer.has_kind(Kind.CONVOLUTION)]
    return [graph.size_bytes(layer.creates) / MIB for layer in layers]


QUANTITIES: dict[str, Callable[[Case, int | None], float | None]] = {
    each.__name__: each
    for each in (
        largest_batch,
        greatest_depth,
        images_per_s,
        tensor_peak_mb,
        peak_step,
        data_tensors,
        most_live_tensors,
        greatest_layer_mb,
        first_output_mb,
        second_output_mb,
        recomputed_layers,
    )
}
