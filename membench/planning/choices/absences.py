"""Compiled loops over a problem's arrays that find when blocks can be away, and which of them leave under a choice.

A block whose home is in host memory is absent from the start of the step (as if its last use had been at step -1) and,
where the step writes it, to its end (as if its next use were behind the last step), as is what the device sends to a
task of the host.
"""

from typing import Any

import numpy as np

from membench.core.libraries.loops import compiled, part
from membench.planning.choices.problem import OFFLOAD

RELIEFS = 200
"""Number of blocks that leave, though no choice says so, where memory lacks otherwise."""


@compiled
def find_absences(a: Any, choices: Any, program: Any, budget: int) -> Any:
    """Return the bytes that each step holds with all absent blocks away, and a row for each absence.

    Rows are (block, written, last, first): the step that wrote the block, and its uses before and after. A unit that is
    offloaded is away for the longest time between two uses. Where a step needs more than the budget, further blocks
    leave.
    """
    held, gaps, taken = _find_gaps(a, choices, program)
    for gap in range(len(gaps)):
        if taken[gap]:
            held[gaps[gap, 2] + 1] -= a.size_bytes[gaps[gap, 0]]
            held[gaps[gap, 3]] += a.size_bytes[gaps[gap, 0]]
    bytes_ = np.int64(0)
    for step in range(len(program.order)):  # held grows by what it says, until it is what is held
        bytes_ += held[step]
        held[step] = bytes_ + a.fixed_bytes + a.workspace_bytes[program.order[step]]
    held = held[: len(program.order)]
    _relieve(a, held, gaps, taken, budget)
    return held, gaps[taken]


@part
def _find_gaps(a: Any, choices: Any, program: Any) -> Any:
    """Return each step's growth of held memory, rows of possible absences, and those that choices ask for."""
    order, ends, slots, originals, pace_s, awaited = program
    blocks, steps = len(a.size_bytes), len(order)
    last = np.full(blocks + len(originals), -1)
    written = last.copy()
    clock, held = np.zeros(steps + 1), np.zeros(steps + 1, np.int64)
    gaps, longest = np.empty((len(slots) + blocks, 4), np.int64), np.full(blocks, -1)
    taken = np.zeros(len(gaps), np.bool_)
    may_leave = _may_leave(a, choices)
    count: Any = np.int64(0)
    for step in range(steps):
        clock[step + 1] = clock[step] + pace_s[step]
        shift = a.touched_at[order[step]] - ends[step]
        for i in range(ends[step], ends[step + 1]):
            slot = slots[i]
            if slot < blocks and a.is_at_home[slot]:
                count = _visit(a, slot, step, last[slot], written[slot], may_leave, clock, held, gaps, taken, count)
            elif last[slot] < 0:
                held[step] += a.size_bytes[slot if slot < blocks else originals[slot - blocks]]
            elif slot < blocks and step > last[slot] + 1 and may_leave[slot]:
                _set(gaps, count, slot, written[slot], last[slot], step)
                best = longest[slot]
                away_s = clock[step] - clock[last[slot] + 1]
                if best < 0 or away_s > clock[gaps[best, 3]] - clock[gaps[best, 2] + 1]:
                    longest[slot] = count
                count += 1
            last[slot] = step
            if a.is_written[i + shift]:
                written[slot] = step
    for block in range(blocks):
        if longest[block] >= 0 and a.unit_of[block] >= 0:
            taken[longest[block]] = True
    count = _end(a, originals, awaited, last, written, may_leave, held, gaps, taken, count)
    return held, gaps[:count], taken[:count]


@part
def _end(
    a: Any,
    originals: Any,
    awaited: Any,
    last: Any,
    written: Any,
    may_leave: Any,
    held: Any,
    gaps: Any,
    taken: Any,
    count: int,
) -> int:
    """Give each slot back behind its last use; add the gap behind it where the block is to be copied to its home.

    What a collective fills last is in use until the compute stream waits for that.
    """
    blocks, steps = len(a.size_bytes), len(held) - 1
    for slot in range(len(last)):
        block = slot if slot < blocks else originals[slot - blocks]
        stays = a.is_at_home[block] and not (may_leave[block] or a.is_visitor[block])
        if last[slot] < 0 or a.is_result[block] or stays:
            continue
        if (a.is_at_home[block] or a.is_sent[block]) and written[block] >= 0:
            until = max(last[block], min(awaited[written[block]], steps - 1))
            _set(gaps, count, block, written[block], until, steps)
            taken[count] = True
            count += 1
        else:
            held[last[slot] + 1] -= a.size_bytes[block]
    return count


@part
def _visit(
    a: Any,
    block: int,
    step: int,
    last: int,
    written: int,
    may_leave: Any,
    clock: Any,
    held: Any,
    gaps: Any,
    taken: Any,
    count: int,
) -> int:
    """Add the gap before a use of a block whose home is in host memory, taken if it is longer than the copy back."""
    if last < 0:
        held[0] += a.size_bytes[block]
    leaves = may_leave[block] or (last < 0 and a.is_visitor[block])
    if not leaves or 0 <= step - 1 <= last:
        return count
    _set(gaps, count, block, written, last, step)
    taken[count] = last < 0 or clock[step] - clock[last + 1] > a.prefetch_s[block]
    return count + 1


@part
def _set(gaps: Any, row: int, block: int, written: int, last: int, first: int) -> None:
    """Set a row; numba would compile an error's text for seconds if all four numbers were set at once."""
    gaps[row, 0], gaps[row, 1], gaps[row, 2], gaps[row, 3] = block, written, last, first


@part
def _may_leave(a: Any, choices: Any) -> Any:
    """Return for each block whether it is not to be kept; one without a choice may leave where memory lacks."""
    found = (a.size_bytes > 0) & ~a.is_result
    for block in range(len(found)):
        if a.unit_of[block] >= 0 and choices[a.unit_of[block]] != OFFLOAD:
            found[block] = False
    return found


@part
def _relieve(a: Any, held: Any, gaps: Any, taken: Any, budget: int) -> None:
    """Let further blocks leave where a step holds too much: of those that can, the one with the most bytes first."""
    reliefs = 0
    for step in range(len(held)):
        while held[step] > budget and reliefs < RELIEFS:
            best = -1
            for gap in range(len(gaps)):
                is_larger = best < 0 or a.size_bytes[gaps[gap, 0]] > a.size_bytes[gaps[best, 0]]
                if is_larger and not taken[gap] and gaps[gap, 2] < step < gaps[gap, 3]:
                    best = gap
            if best < 0:
                return
            taken[best] = True
            reliefs += 1
            for away in range(gaps[best, 2] + 1, gaps[best, 3]):
                held[away] -= a.size_bytes[gaps[best, 0]]
