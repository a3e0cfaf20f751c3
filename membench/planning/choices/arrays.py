"""A problem as arrays, for compiled loops, and the program of a step."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from membench.core.graph.task_graph import RESULT_ROLES
from membench.planning.choices.problem import Problem


class Arrays(NamedTuple):
    """Tasks, blocks and units by number; lists of numbers are concatenated, with an array of their starts.

    Operations are the graph's tasks and behind them those that run again; times are in seconds, sizes in bytes.
    """

    tasks: int
    turn: int
    fixed_bytes: int
    duration_s: Any
    has_collectives: bool
    is_collective: Any
    collective_s: Any
    delay_s: Any  # of kernels, by each collective
    launch_s: Any
    workspace_bytes: Any
    layer: Any
    again: Any  # task -> operation, or -1
    touched_at: Any
    touched: Any
    is_read: Any  # of each touched block
    is_written: Any
    creates_at: Any
    creates: Any
    size_bytes: Any  # of blocks; 0 for the caller's
    is_result: Any
    is_at_home: Any  # in host memory before and after the step
    is_visitor: Any  # written there by a task of the host, so never on the device throughout
    is_sent: Any  # read by a task of the host after tasks of the device have written it
    host_s: Any  # of tasks of the host, in order
    sent_at: Any
    sent: Any  # blocks that each of these reads
    unit_of: Any  # block -> unit, or -1
    offload_s: Any
    prefetch_s: Any
    copy_delay_s: Any  # of kernels, by each copy of a block
    makers_at: Any
    makers: Any
    inputs_at: Any
    inputs: Any
    is_gathered: Any  # of units: whether they are gathered weights


class Operations(NamedTuple):
    """Operations in the order in which they run.

    Slots are blocks, and behind them copies of blocks that are made again.

    Attributes:
        order: numbers of operations, int64.
        starts: where each operation begins in `slots`, and the end of the last.
        slots: what each operation touches.
        originals: the block of each copy.
        pace_s: seconds of each operation, what it waits for collectives included, where nothing is copied.
        awaited: for each collective, the step before which the compute stream waits for it, their number for the end;
            -1: not one.
    """

    order: Any
    starts: Any
    slots: Any
    originals: Any
    pace_s: Any
    awaited: Any


def as_arrays(problem: Problem) -> Arrays:
    """Return a problem as arrays."""
    graph, operations, units = problem.graph, problem.operations, problem.units
    again = np.full(len(graph.tasks), -1)
    for task, operation in problem.again.items():
        again[task] = operation
    unit_of = np.full(len(graph.blocks), -1)
    for block, unit in problem.unit_of.items():
        unit_of[block] = unit
    touched_at, touched = _concatenated(problem.touched)
    creates_at, creates = _concatenated(task.creates for task in operations)
    makers_at, makers = _concatenated(unit.makers for unit in units)
    inputs_at, inputs = _concatenated(unit.inputs for unit in units)
    sent_at, sent = _concatenated(problem.sent.values())
    is_sent = set(sent.tolist())
    return Arrays(
        tasks=len(graph.tasks),
        turn=problem.turn,
        fixed_bytes=graph.external_bytes,
        duration_s=np.array(problem.duration_s),
        has_collectives=any(task.collective for task in operations),
        is_collective=_flags(task.collective is not None for task in operations),
        collective_s=np.array(problem.collective_s),
        delay_s=np.array(problem.delay_s),
        launch_s=np.array(problem.launch_s),
        workspace_bytes=np.array([task.workspace_bytes for task in operations], dtype=np.int64),
        layer=np.array([task.layer for task in graph.tasks], dtype=np.int64),
        again=again,
        touched_at=touched_at,
        touched=touched,
        is_read=_flags(b in t.reads for t, bs in zip(operations, problem.touched, strict=True) for b in bs),
        is_written=_flags(b in t.writes for t, bs in zip(operations, problem.touched, strict=True) for b in bs),
        creates_at=creates_at,
        creates=creates,
        size_bytes=np.array([0 if b.is_external else b.size_bytes for b in graph.blocks], dtype=np.int64),
        is_result=_flags(block.role in RESULT_ROLES for block in graph.blocks),
        is_at_home=_flags(block.host_location is not None for block in graph.blocks),
        is_visitor=_flags(block.index in problem.visitors for block in graph.blocks),
        is_sent=_flags(block.index in is_sent for block in graph.blocks),
        host_s=np.array(list(problem.host_s.values()), dtype=np.float64),
        sent_at=sent_at,
        sent=sent,
        unit_of=unit_of,
        offload_s=np.array(problem.offload_s),
        prefetch_s=np.array(problem.prefetch_s),
        copy_delay_s=np.array(problem.copy_delay_s),
        makers_at=makers_at,
        makers=makers,
        inputs_at=inputs_at,
        inputs=inputs,
        is_gathered=_flags(unit.gather_s > 0 for unit in units),
    )  # fmt: skip


def _flags(values: Iterable[bool]) -> Any:
    return np.array(list(values), dtype=np.bool_)


def _concatenated(lists: Iterable[Sequence[int]]) -> tuple[Any, Any]:
    found = list(lists)
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return starts, np.array([number for numbers in found for number in numbers], dtype=np.int64)
