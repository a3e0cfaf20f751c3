"""Compiled loops over a program's collectives, which run one after another on a stream of their own.

A collective starts where the compute stream is when it is issued, and the compute stream waits for it at the first
operation that uses what it fills, or at the one behind which memory that it reads is given back. It delays kernels that
run meanwhile.
"""

from typing import Any

import numpy as np

from membench.core.libraries.loops import compiled, part
from membench.planning.choices.arrays import Operations
from membench.planning.choices.order import by_step


@compiled
def paced(a: Any, order: Any, ends: Any, slots: Any, originals: Any) -> Any:
    """Return a program with the seconds of each step, and with where its collectives are waited for."""
    pace_s, awaited = a.duration_s[order], np.full(len(order), -1)
    if not a.has_collectives:
        return Operations(order, ends, slots, originals, pace_s, awaited)
    _await(a, order, ends, slots, originals, awaited)
    here_s, beside_s = np.zeros(len(order) + 1), np.zeros(3)
    time_s = 0.0
    for step in range(len(order)):
        end_s = end_of_step_s(a, order[step], step, awaited, here_s, beside_s, time_s)
        pace_s[step] = end_s - time_s
        time_s = end_s
    return Operations(order, ends, slots, originals, pace_s, awaited)


@part
def end_of_step_s(a: Any, operation: int, step: int, awaited: Any, here_s: Any, beside_s: Any, time_s: float) -> float:
    """Return when the compute stream has passed a step; it is free at `time_s`.

    Args:
        here_s: when what each step waits for is there; updated by a collective.
        beside_s: when the stream of collectives is free, by how much the next kernel is delayed, and when the last one
            has ended; updated.
    """
    start_s = max(time_s, here_s[step])
    if awaited[step] >= 0:
        beside_s[0] = max(beside_s[0], start_s) + a.collective_s[operation]
        beside_s[1] += a.delay_s[operation]
        here_s[awaited[step]] = max(here_s[awaited[step]], beside_s[0])
        return start_s
    delay_s = max(0.0, beside_s[1] - (start_s + a.launch_s[operation] - beside_s[2]))
    beside_s[1] = 0.0
    beside_s[2] = start_s + a.duration_s[operation] + delay_s
    return beside_s[2]


@part
def _await(a: Any, order: Any, ends: Any, slots: Any, originals: Any, awaited: Any) -> None:
    """Find the step before which the compute stream waits for each collective; other steps have -1."""
    blocks, steps = len(a.size_bytes), len(order)
    last = np.full(blocks + len(originals), -1)
    for step in range(steps):
        for slot in slots[ends[step] : ends[step + 1]]:
            last[slot] = step
    filling, using = (np.full(len(last), -1), np.full(len(last), -1))  # the last collective that writes, or touches
    for step in range(steps):
        operation = order[step]
        shift = a.touched_at[operation] - ends[step]
        if a.is_collective[operation]:
            awaited[step] = steps
        for i in range(ends[step], ends[step + 1]):
            slot = slots[i]
            block = slot if slot < blocks else originals[slot - blocks]
            is_written = a.is_written[i + shift]
            if a.is_collective[operation]:
                using[slot] = step
                filling[slot] = step if is_written else filling[slot]
            else:
                before = using[slot] if is_written else filling[slot]
                if before >= 0:
                    awaited[before] = min(awaited[before], step)
            is_freed = a.size_bytes[block] > 0 and not (a.is_result[block] or a.is_sent[block] or a.is_at_home[block])
            if is_freed and last[slot] == step and using[slot] >= 0:
                awaited[using[slot]] = min(awaited[using[slot]], step + 1)


@part
def gathered_ahead(a: Any, order: Any, ends: Any, slots: Any, originals: Any) -> Any:
    """Return the program with regathered weights gathered ahead, while what uses the group before them runs.

    What is issued ahead is the collective with the copy into its buffer.
    """
    steps = len(order)
    is_ahead = np.zeros(steps, np.bool_)
    for step in range(a.turn, steps):
        if order[step] >= a.tasks and a.is_collective[order[step]]:
            is_ahead[step] = True
            if order[step - 1] >= a.tasks and _fills_for(a, ends, slots, order[step - 1], step):
                is_ahead[step - 1] = True
    if not is_ahead.any():
        return paced(a, order, ends, slots, originals)
    keys = np.empty(steps, np.int64)
    for step in range(steps):
        keys[step] = 2 * step
    arrivals, pending = [a.turn - 1], [0 for _ in range(0)]
    seen = np.zeros(len(a.size_bytes) + len(originals), np.bool_)
    seen_units = np.zeros(len(a.is_gathered), np.bool_)
    for step in range(a.turn, steps):
        if is_ahead[step]:
            pending.append(step)
        elif _arrives(a, ends, slots, originals, step, seen, seen_units):
            for each in pending:
                keys[each] = min(keys[each], 2 * arrivals[-1] + 1)
            pending.clear()
            arrivals.append(step)
    moved = by_step(keys, 2 * steps)
    new_ends, new_slots = np.zeros(steps + 1, np.int64), slots.copy()
    for step in range(steps):
        first, behind = ends[moved[step]], ends[moved[step] + 1]
        new_ends[step + 1] = new_ends[step] + behind - first
        for i in range(first, behind):
            new_slots[new_ends[step] + i - first] = slots[i]
    return paced(a, order[moved], new_ends, new_slots, originals)


@part
def _fills_for(a: Any, ends: Any, slots: Any, operation: int, step: int) -> bool:
    """Return whether the step before one writes what that one touches; `operation` is the one before."""
    shift = a.touched_at[operation] - ends[step - 1]
    for i in range(ends[step - 1], ends[step]):
        for other in slots[ends[step] : ends[step + 1]]:
            if a.is_written[i + shift] and slots[i] == other:
                return True
    return False


@part
def _arrives(a: Any, ends: Any, slots: Any, originals: Any, step: int, seen: Any, seen_units: Any) -> bool:
    """Return whether a step of the backward pass is the first one to use the weights of a group, or a copy of them."""
    blocks, found = len(a.size_bytes), False
    for i in range(ends[step], ends[step + 1]):
        slot = slots[i]
        unit = a.unit_of[slot if slot < blocks else originals[slot - blocks]]
        if unit < 0 or not a.is_gathered[unit]:
            continue
        if slot < blocks:
            found |= not seen_units[unit]
            seen_units[unit] = True
        else:
            found |= not seen[slot]
            seen[slot] = True
    return found
