"""Compiled loops over a problem's arrays: the order of operations under a choice, and the copies that keep a budget.

`run_again` puts what is dropped right before the task of the backward pass that needs it. `find_absences`, `go_back` and
`go_forward` decide when blocks leave and return, so that a copy is waited for only where memory lacks. `go_back` walks from
the end of the step to its start: a block's copy back ends where the block is needed, or earlier where the link is busy, and
its memory is taken at the task during which the copy begins; where the memory is needed before, the step waits. `go_forward`
is the same rule with time reversed: copies out start as soon as a block is written, in that order; its memory is given back
when the copy has ended and its last reader has run; where memory is needed before, the step waits.
"""

from heapq import heappop, heappush
from typing import Any

import numpy as np

from membench.codecs.loops import compiled

KEEP, OFFLOAD, RECOMPUTE, REPEAT = range(4)
"""The fate of a unit between its last use of the forward pass and its first of the backward pass.

`RECOMPUTE`: once, before the first task that needs it; `REPEAT`: for each layer of the backward pass anew.
"""

LONGEST = 4
"""A program has at most that many times as many steps as the graph has tasks."""

RELIEFS = 200
"""Number of blocks that leave, though no choice says so, where memory lacks otherwise."""


@compiled
def run_again(a: Any, choices: Any) -> Any:
    """Return operations in order, the slots that each touches (blocks, and copies behind them), and the copies' originals.

    The order is empty where it would be too long.
    """
    blocks = len(a.size_bytes)
    most = LONGEST * len(a.duration_s)
    order, slots_at = np.empty(most, np.int64), np.zeros(most + 1, np.int64)
    slots, originals = np.empty(LONGEST * len(a.touched), np.int64), np.empty(most, np.int64)
    copy_of, extra = np.full(blocks, -1), np.full(blocks, -1)
    dropped = np.zeros(blocks, np.bool_)
    for block in range(blocks):
        dropped[block] = a.unit_of[block] >= 0 and choices[a.unit_of[block]] >= RECOMPUTE
    seen = np.full(len(choices), -1)
    steps = filled = copies = 0
    layer = -1
    for task in range(a.tasks):
        if task >= a.turn:
            if a.layer[task] != layer:
                layer = a.layer[task]
                for block in range(blocks):
                    if copy_of[block] >= 0 and choices[a.unit_of[block]] == REPEAT:
                        copy_of[block] = -1
            stack = [
                a.touched[i]
                for i in range(a.touched_at[task], a.touched_at[task + 1])
                if a.is_read[i] and dropped[a.touched[i]] and copy_of[a.touched[i]] < 0
            ]
            needed = stack[:0]
            while len(stack):
                unit = a.unit_of[stack.pop()]
                if seen[unit] == task:
                    continue
                seen[unit] = task
                for i in range(a.makers_at[unit], a.makers_at[unit + 1]):
                    needed.append(a.makers[i])
                for i in range(a.inputs_at[unit], a.inputs_at[unit + 1]):
                    if dropped[a.inputs[i]] and copy_of[a.inputs[i]] < 0:
                        stack.append(a.inputs[i])
            first_copy = copies
            for maker in sorted(needed):
                operation = a.again[maker]
                if steps + 2 > most or filled + 100 > len(slots) or copies + 100 > most:
                    return order[:0], slots_at, slots, originals
                for i in range(a.creates_at[operation], a.creates_at[operation + 1]):
                    originals[copies] = a.creates[i]
                    if dropped[a.creates[i]]:
                        copy_of[a.creates[i]] = blocks + copies
                    else:
                        extra[a.creates[i]] = blocks + copies
                    copies += 1
                for i in range(a.touched_at[operation], a.touched_at[operation + 1]):
                    block = a.touched[i]
                    slots[filled] = block
                    if extra[block] >= 0:
                        slots[filled] = extra[block]
                    elif copy_of[block] >= 0:
                        slots[filled] = copy_of[block]
                    filled += 1
                order[steps] = operation
                steps += 1
                slots_at[steps] = filled
            for copy in range(first_copy, copies):
                extra[originals[copy]] = -1
        if steps + 2 > most or filled + 100 > len(slots):
            return order[:0], slots_at, slots, originals
        for i in range(a.touched_at[task], a.touched_at[task + 1]):
            block = a.touched[i]
            use_copy = task >= a.turn and dropped[block] and copy_of[block] >= 0
            slots[filled] = copy_of[block] if use_copy else block
            filled += 1
        order[steps] = task
        steps += 1
        slots_at[steps] = filled
    return order[:steps], slots_at[: steps + 1], slots[:filled], originals[:copies]


@compiled
def find_absences(a: Any, choices: Any, program: Any, budget: int) -> Any:
    """Return the bytes that each step holds with all absent blocks away, and a row for each absence.

    Rows are (block, written, last, first): the step that wrote the block, and its uses before and after. A unit that is
    offloaded is away for the longest time between two uses. Where a step needs more than the budget, further blocks leave.
    """
    order, slots_at, slots, originals = program
    steps, blocks = len(order), len(a.size_bytes)
    first = np.full(blocks + len(originals), -1)
    last, written = first.copy(), first.copy()
    clock = np.zeros(steps + 1)
    gaps = np.empty((len(slots), 4), np.int64)
    longest = np.full(blocks, -1)
    count = 0
    for step in range(steps):
        operation = order[step]
        clock[step + 1] = clock[step] + a.duration_s[operation]
        shift = a.touched_at[operation] - slots_at[step]
        for i in range(slots_at[step], slots_at[step + 1]):
            slot = slots[i]
            if slot < blocks and last[slot] >= 0 and step > last[slot] + 1 and not a.is_result[slot]:
                unit = a.unit_of[slot]
                if a.size_bytes[slot] and (unit < 0 or choices[unit] == OFFLOAD):
                    gaps[count] = (slot, written[slot], last[slot], step)
                    best = longest[slot]
                    if (
                        best < 0
                        or clock[step] - clock[last[slot] + 1]
                        > clock[gaps[best, 3]] - clock[gaps[best, 2] + 1]
                    ):
                        longest[slot] = count
                    count += 1
            if first[slot] < 0:
                first[slot] = step
            last[slot] = step
            if a.is_written[i + shift]:
                written[slot] = step
    held = np.zeros(steps + 1, np.int64)
    for slot in range(len(first)):
        block = slot if slot < blocks else originals[slot - blocks]
        if first[slot] >= 0:
            held[first[slot]] += a.size_bytes[block]
            if not a.is_result[block]:
                held[last[slot] + 1] -= a.size_bytes[block]
    taken = np.zeros(count, np.bool_)
    for gap in range(count):
        block = gaps[gap, 0]
        if a.unit_of[block] >= 0 and longest[block] == gap:
            taken[gap] = True
            held[gaps[gap, 2] + 1] -= a.size_bytes[block]
            held[gaps[gap, 3]] += a.size_bytes[block]
    held = np.cumsum(held)[:steps] + a.fixed_bytes
    for step in range(steps):
        held[step] += a.workspace_bytes[order[step]]
    _relieve(a, held, gaps[:count], taken, budget)
    return held, gaps[:count][taken]


@compiled
def _relieve(a: Any, held: Any, gaps: Any, taken: Any, budget: int) -> None:
    """Let further blocks leave where a step holds too much: of those that can, the one with the most bytes first."""
    reliefs = 0
    for step in range(len(held)):
        while held[step] > budget and reliefs < RELIEFS:
            best = -1
            for gap in range(len(gaps)):
                if not taken[gap] and gaps[gap, 2] < step < gaps[gap, 3]:
                    if best < 0 or a.size_bytes[gaps[gap, 0]] > a.size_bytes[gaps[best, 0]]:
                        best = gap
            if best < 0:
                return
            taken[best] = True
            reliefs += 1
            held[gaps[best, 2] + 1 : gaps[best, 3]] -= a.size_bytes[gaps[best, 0]]


@compiled
def go_back(a: Any, order: Any, held: Any, absences: Any, budget: int) -> Any:
    """Return for each absence the step before which it returns, or -1 where it is too short; add to `held` what is early.

    The result is empty where memory does not suffice.
    """
    count, steps = len(absences), len(order)
    returns = np.full(count, -1)
    queue = np.argsort(-absences[:, 3] * steps + absences[:, 2], kind="mergesort")
    ending = np.argsort(-absences[:, 2], kind="mergesort")
    ends_s = np.zeros(count)
    state = np.zeros(count, np.int8)  # 1: on its way, 2: done
    head = tail = at_end = 0
    time_s = link_s = 0.0
    early = 0
    for step in range(steps - 1, -1, -1):
        while at_end < count and absences[ending[at_end], 2] >= step:
            absence = ending[at_end]
            if state[absence] == 1:
                state[absence] = 2
                early -= a.size_bytes[absences[absence, 0]]
            at_end += 1
        while head < tail:
            absence = queue[head]
            if state[absence] == 1:
                if ends_s[absence] > time_s and held[step] + early <= budget:
                    break
                time_s = max(time_s, ends_s[absence])
                early -= a.size_bytes[absences[absence, 0]]
                returns[absence] = step + 1
                state[absence] = 2
            head += 1
        held[step] += early
        if held[step] > budget:
            return returns[:0]
        time_s += a.duration_s[order[step]]
        while tail < count and absences[queue[tail], 3] == step:
            absence = queue[tail]
            link_s = max(time_s, link_s) + a.prefetch_s[absences[absence, 0]]
            ends_s[absence] = link_s
            state[absence] = 1
            early += a.size_bytes[absences[absence, 0]]
            tail += 1
    return returns


@compiled
def go_forward(a: Any, order: Any, held: Any, absences: Any, returns: Any, budget: int) -> Any:
    """Return the step before which each absent block is freed (-1: it stays), the seconds of the step, and its peak.

    The time is infinite where memory does not suffice.
    """
    count, steps = len(absences), len(order)
    leaves = np.full(count, -1)
    writing = np.argsort(absences[:, 1], kind="mergesort")
    ending = np.argsort(absences[:, 2], kind="mergesort")
    returning = np.argsort(returns * steps + absences[:, 3], kind="mergesort")
    copied_s, here_s = np.zeros(count), np.zeros(steps + 1)
    out_of, out_since = np.zeros(len(a.size_bytes)), np.full(len(a.size_bytes), -1)
    waiting = np.zeros(count, np.bool_)
    leaving = [(0.0, 0) for _ in range(0)]
    at_writing = at_ending = at_returning = 0
    time_s = out_s = back_s = 0.0
    late = peak = 0
    for step in range(steps):
        start = at_returning
        while at_returning < count and returns[returning[at_returning]] <= step:
            absence = returning[at_returning]
            if waiting[absence]:
                waiting[absence] = False
                late -= a.size_bytes[absences[absence, 0]]
            at_returning += 1
        while len(leaving):
            if waiting[leaving[0][1]]:
                if leaving[0][0] > time_s and held[step] + late <= budget:
                    break
                absence = leaving[0][1]
                time_s = max(time_s, leaving[0][0])
                late -= a.size_bytes[absences[absence, 0]]
                leaves[absence] = step
                waiting[absence] = False
            heappop(leaving)
        peak = max(peak, held[step] + late)
        if held[step] + late > budget:
            return leaves, np.inf, peak
        for i in range(start, at_returning):
            absence = returning[i]
            if leaves[absence] >= 0:
                back_s = max(back_s, time_s) + a.prefetch_s[absences[absence, 0]]
                here_s[absences[absence, 3]] = max(here_s[absences[absence, 3]], back_s)
        time_s = max(time_s, here_s[step]) + a.duration_s[order[step]]
        while at_writing < count and absences[writing[at_writing], 1] == step:
            absence = writing[at_writing]
            block = absences[absence, 0]
            if returns[absence] >= 0:
                if out_since[block] != step:
                    out_s = max(out_s, time_s) + a.offload_s[block]
                    out_of[block], out_since[block] = out_s, step
                copied_s[absence] = out_of[block]
            at_writing += 1
        while at_ending < count and absences[ending[at_ending], 2] == step:
            absence = ending[at_ending]
            if returns[absence] >= 0:
                heappush(leaving, (copied_s[absence], absence))
                waiting[absence] = True
                late += a.size_bytes[absences[absence, 0]]
            at_ending += 1
    return leaves, time_s, peak
