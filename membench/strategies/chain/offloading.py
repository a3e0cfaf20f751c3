"""POFO's dynamic program: for each stage of a chain store or recompute, and offload its input or keep it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from membench.core.hardware.cost_model import CostModel
from membench.core.libraries.loops import compiled, part
from membench.core.units import MIB
from membench.planning.choices.problem import KEEP, OFFLOAD
from membench.planning.rewrites.recompute import Order
from membench.strategies.chain.persistent import Table
from membench.strategies.chain.stages import Chain, ChainReplay

MOST_CLASSES = 32
"""Of the bytes in one part of a state."""

LOOPS = 100_000_000
"""Steps of the program, roughly."""

COPIED_BYTES = 64 * MIB
"""Size of the copy from which the link's speed is taken."""


@dataclass(frozen=True, slots=True)
class Group:
    """Stages of one decision.

    Attributes:
        slots: slots of the table by which the stages are recomputed; -1: the one stage stores.
        offloads_input: copy to the host what the first stage's input consists of: all that the stage before stores, or
            its output alone where that is recomputed.
    """

    first: int
    last: int
    slots: int
    offloads_input: bool


def plan_groups(table: Table, cost: CostModel, room_bytes: int) -> tuple[Group, ...]:
    """Return the groups of the fastest plan within `room_bytes`, what is held all the time left out; empty: none."""
    stages = table.chain.stages
    count = len(stages)
    classes = min(MOST_CLASSES, int((LOOPS / (2 * count**2)) ** (1 / 3)))
    sizes = np.array(
        [
            (s.output_bytes, s.stored_bytes, s.forward_bytes, s.storing_bytes, s.backward_bytes, s.result_bytes)
            for s in stages
        ],
        dtype=np.float64,
    )
    times = np.array([(stage.forward_s, stage.backward_s) for stage in stages])
    link = np.array([COPIED_BYTES / copy_s(COPIED_BYTES) for copy_s in (cost.offload_time_s, cost.prefetch_time_s)])
    rows = _plan(sizes, times, link, table.seconds, table.slot_bytes, float(room_bytes), max(2, classes))
    return tuple(Group(int(first), int(last), int(slots), bool(off)) for first, last, slots, off in rows)


@compiled
def _plan(sizes: Any, times: Any, link: Any, seconds: Any, slot_bytes: float, room: float, classes: int) -> Any:
    """Return rows (first, last, slots, whether the input is offloaded); no row where nothing fits.

    A state is (stage, whether the stage before stores, kept bytes, bytes still to leave, bytes fetched ahead). Of those
    whose bytes fall in the same classes the fastest is continued, with its bytes as they are.
    """
    count = len(sizes)
    width = classes + 1
    per_stage = 2 * width**3
    best_s = np.full((count + 1) * per_stage, np.inf)
    best = np.empty((len(best_s), 3))  # kept, leaving, ahead; few states are reached, and the others never touched
    rows = np.empty((len(best_s), 5), np.int32)  # of Group, and the state before
    best_s[0], best[0] = 0.0, 0.0
    after = np.zeros(count + 1)  # weight gradients of later stages
    for number in range(count - 1, -1, -1):
        after[number] = after[number + 1] + sizes[number, 5]
    for state in range(count * per_stage):
        if best_s[state] == np.inf:
            continue
        first, is_stored = state // per_stage, (state % per_stage) // width**3
        inputs = sizes[first - 1, is_stored] if first else 0.0
        kept, leaving, ahead = best[state]
        free = room - kept - inputs
        storing, backward = sizes[first, 3], sizes[first, 4] + after[first + 1]
        if max(storing, backward) <= free:
            out_s = times[first, 0] + max(0.0, storing + leaving - free) / link[0]
            back_s = times[first, 1] + max(0.0, backward + ahead - free) / link[1]
            row = (first, first, np.int64(-1))
            _extend(best_s, best, rows, state, row, inputs, out_s, back_s, link, room, classes)
        run_s = need = late = 0.0
        for last in range(first, count - 1):
            held = sizes[last, 2] + (sizes[last - 1, 0] if last > first else 0.0)
            need = max(need, held)
            late = max(late, held + leaving - link[0] * run_s - free)
            run_s += times[last, 0]
            for waits in range(2 if ahead > 0 else 1):  # with what is fetched ahead until the run has ended
                rest = free - after[last + 1] - (0.0 if waits else ahead)
                if need > free or rest < 0:
                    continue
                slots = min(int(rest / slot_bytes), seconds.shape[2] - 1)
                back_s = seconds[first, last, slots] + (ahead / link[1] if waits else 0.0)
                if back_s < np.inf:
                    row, out_s = (first, last, slots), run_s + late / link[0]
                    _extend(best_s, best, rows, state, row, inputs, out_s, back_s, link, room, classes)
    return _trace(best_s, best, rows, count * per_stage, link)


@part
def _extend(
    best_s: Any,
    best: Any,
    rows: Any,
    state: int,
    row: Any,
    inputs: float,
    out_s: float,
    back_s: float,
    link: Any,
    room: float,
    classes: int,
) -> None:
    """Enter the states that follow from a group, whose input is kept or offloaded.

    Args:
        inputs: bytes of the group's input.
        out_s: seconds of its forward pass, waiting included; `back_s`: of its backward pass.
    """
    width = classes + 1
    total_s = best_s[state] + out_s + back_s
    for offloads in range(2 if inputs > 0 else 1):
        copied = inputs if offloads else 0.0
        kept = best[state, 0] + inputs - copied
        leaving = max(0.0, best[state, 1] + copied - link[0] * out_s)
        ahead = max(0.0, best[state, 2] - link[1] * back_s) + copied
        if max(kept, leaving, ahead) > room:
            continue
        index = 2 * (row[1] + 1) + (1 if row[2] < 0 else 0)
        for held in (kept, leaving, ahead):
            index = index * width + int(np.ceil(held / room * classes))
        is_new = best_s[index] == np.inf
        if is_new or total_s + leaving / link[0] + ahead / link[1] < (
            best_s[index] + best[index, 1] / link[0] + best[index, 2] / link[1]
        ):
            best_s[index] = total_s
            best[index, 0], best[index, 1], best[index, 2] = kept, leaving, ahead
            rows[index, 0], rows[index, 1], rows[index, 2] = row
            rows[index, 3], rows[index, 4] = offloads, state


@part
def _trace(best_s: Any, best: Any, rows: Any, start: int, link: Any) -> Any:
    """Return the rows that lead to the fastest final state; what has not left or is fetched ahead then takes time."""
    end, end_s = -1, np.inf
    for state in range(start, len(best_s)):
        if best_s[state] < np.inf:
            state_s = best_s[state] + best[state, 1] / link[0] + best[state, 2] / link[1]
            if state_s < end_s:
                end, end_s = state, state_s
    found = [rows[0, :4] for _ in range(0)]
    while end > 0:
        found.append(rows[end, :4])
        end = rows[end, 4]
    return found[::-1]


def order_of(table: Table, groups: tuple[Group, ...]) -> Order:
    """Return the order of tasks that groups ask for."""
    replay = ChainReplay(table.chain)
    for group in groups:
        for number in range(group.first, group.last + 1):
            replay.forward(number, stores=group.slots < 0)
            if number > group.first:
                replay.drop_output(number - 1)
    for group in reversed(groups):
        if group.slots < 0:
            replay.backward(group.first)
        else:
            replay.drop_output(group.last)
            table.replay(replay, group.first, group.last, group.slots)
    return replay.finish()


def choices_of(chain: Chain, groups: tuple[Group, ...]) -> list[int]:
    """Return for each unit of the chain's problem whether it is offloaded."""
    choices = [KEEP] * len(chain.problem.units)
    for before, group in pairwise(groups):
        if group.offloads_input:
            stage = chain.stages[before.last]
            output = frozenset(() if stage.output is None else (stage.output,))
            for block in output | (stage.stored if before.slots < 0 else frozenset()):
                choices[chain.problem.unit_of[block]] = OFFLOAD
    return choices
