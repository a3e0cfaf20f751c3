"""Compiled loops over a problem's arrays: the order of operations under a choice, and the copies that keep a budget.

`run_again` puts what is dropped right before the task of the backward pass that needs it. `go_back` and `go_forward`
decide when the blocks of `absences` leave and return, so that a copy is waited for only where memory lacks. `go_back`
walks from the end of the step to its start: a block's copy back ends where the block is needed, or earlier where the
link is busy, and its memory is taken at the task during which the copy begins; where the memory is needed before, the
step waits. `go_forward` is the same rule with time reversed: copies out start as soon as a block is written, in that
order; its memory is given back when the copy has ended and its last reader has run; where memory is needed before, the
step waits. `plan_copies` is all of these for one choice.
"""

from heapq import heappop, heappush
from typing import Any

import numpy as np

from membench.core.libraries.loops import compiled, part
from membench.planning.choices.absences import find_absences
from membench.planning.choices.collectives import end_of_step_s, gathered_ahead, paced
from membench.planning.choices.order import by_step
from membench.planning.choices.problem import RECOMPUTE, REPEAT

LONGEST = 4
"""A program has at most that many times as many steps as the graph has tasks."""


@compiled
def run_again(a: Any, choices: Any) -> Any:
    """Return the program that follows from choices; its order is empty where it would be too long."""
    blocks = len(a.size_bytes)
    dropped, repeated = np.zeros(blocks, np.bool_), np.zeros(blocks, np.bool_)
    for block in range(blocks):
        if a.unit_of[block] >= 0:
            dropped[block] = choices[a.unit_of[block]] >= RECOMPUTE
            repeated[block] = choices[a.unit_of[block]] == REPEAT
    forgotten = np.flatnonzero(repeated)
    copy_of, extra, seen = np.full(blocks, -1), np.full(blocks, -1), np.full(len(choices), -1)
    spare = np.max(a.touched_at[1:] - a.touched_at[:-1]) + 1  # more than one operation fills; np.diff compiles for 3 s
    order = np.empty(LONGEST * a.tasks + spare, np.int64)
    originals = order.copy()
    ends, slots = np.zeros(len(order) + 1, np.int64), np.empty(LONGEST * len(a.touched) + spare, np.int64)
    filled = np.zeros(3, np.int64)  # operations, slots, copies
    layer: Any = -1
    for task in range(a.tasks):
        if task >= a.turn:
            if a.layer[task] != layer:
                layer = a.layer[task]
                for each in forgotten:
                    copy_of[each] = -1
            for i in range(a.touched_at[task], a.touched_at[task + 1]):
                if a.is_read[i] and dropped[a.touched[i]] and copy_of[a.touched[i]] < 0:
                    makers = _makers(a, task, dropped, copy_of, seen)
                    if not _make(a, makers, dropped, copy_of, extra, order, ends, slots, originals, filled, spare):
                        return paced(a, order[:0], ends, slots, originals)
                    break
        if filled[0] == len(order) or filled[1] + spare > len(slots):
            return paced(a, order[:0], ends, slots, originals)
        for i in range(a.touched_at[task], a.touched_at[task + 1]):
            block = a.touched[i]
            slots[filled[1]] = copy_of[block] if task >= a.turn and copy_of[block] >= 0 else block
            filled[1] += 1
        order[filled[0]] = task
        filled[0] += 1
        ends[filled[0]] = filled[1]
    ends = ends[: filled[0] + 1]
    return gathered_ahead(a, order[: filled[0]], ends, slots[: filled[1]], originals[: filled[2]])


@part
def _make(
    a: Any,
    makers: Any,
    dropped: Any,
    copy_of: Any,
    extra: Any,
    order: Any,
    ends: Any,
    slots: Any,
    originals: Any,
    filled: Any,
    spare: int,
) -> bool:
    """Append operations that make blocks again, in the forward pass's order; return whether there was room.

    Args:
        extra: copies that are made in addition, by block; -1 before and behind the call.
    """
    first = filled[2]
    while len(makers) > 0:
        room = min(len(order) - filled[0], len(slots) - filled[1], len(originals) - filled[2])
        if room < spare:
            return False
        operation = a.again[heappop(makers)]
        for i in range(a.creates_at[operation], a.creates_at[operation + 1]):
            copy = len(a.size_bytes) + filled[2]
            originals[filled[2]] = a.creates[i]
            filled[2] += 1
            if dropped[a.creates[i]]:
                copy_of[a.creates[i]] = copy
            else:
                extra[a.creates[i]] = copy
        for i in range(a.touched_at[operation], a.touched_at[operation + 1]):
            block = a.touched[i]
            copy = copy_of[block] if copy_of[block] >= 0 else extra[block]
            slots[filled[1]] = copy if copy >= 0 else block
            filled[1] += 1
        order[filled[0]] = operation
        filled[0] += 1
        ends[filled[0]] = filled[1]
    for i in range(first, filled[2]):
        extra[originals[i]] = -1
    return True


@part
def _makers(a: Any, task: int, dropped: Any, copy_of: Any, seen: Any) -> Any:
    """Return, as a heap, the tasks that make what a task reads and is not there, and what these read in turn."""
    makers = [np.int64(0) for _ in range(0)]
    left = [np.int64(0) for _ in range(0)]
    for i in range(a.touched_at[task], a.touched_at[task + 1]):
        if a.is_read[i] and dropped[a.touched[i]] and copy_of[a.touched[i]] < 0:
            left.append(a.unit_of[a.touched[i]])
    while left:
        unit = left.pop()
        if seen[unit] == task:
            continue
        seen[unit] = task
        for i in range(a.makers_at[unit], a.makers_at[unit + 1]):
            heappush(makers, a.makers[i])
        for i in range(a.inputs_at[unit], a.inputs_at[unit + 1]):
            if dropped[a.inputs[i]] and copy_of[a.inputs[i]] < 0:
                left.append(a.unit_of[a.inputs[i]])
    return makers


@compiled
def plan_copies(a: Any, choices: Any, program: Any, budget: int, slowest_s: float) -> Any:
    """Return a choice's absences, by `go_forward` and `go_back`: each leaves before it returns.

    One that would return before it has left is copied neither way, which leaves the link to others. Where memory does
    not suffice there are none. The time is infinite also where the step takes longer than `slowest_s`.
    """
    order, nothing = program.order, np.full(0, -1)
    if max(np.sum(a.duration_s[order]), np.sum(a.collective_s[order])) > slowest_s:
        return np.empty((0, 4), np.int64), nothing, nothing, np.inf, np.int64(0)
    held, absences = find_absences(a, choices, program, budget)
    most = np.max(held)
    returns = go_back(a, program.pace_s, held, absences, budget) if most <= budget else nothing
    if len(returns) != len(absences) or most > budget:
        return absences[:0], nothing, nothing, np.inf, most
    limit_s = np.inf
    while True:
        leaves, step_s, peak = go_forward(a, program, held, absences, returns, budget, limit_s)
        stays = np.flatnonzero((returns >= 0) & (leaves < 0))
        if step_s == np.inf or len(stays) == 0:
            return absences, leaves, returns, step_s if step_s <= slowest_s else np.inf, peak
        for absence in stays:
            for step in range(absences[absence, 2] + 1, returns[absence]):
                held[step] += a.size_bytes[absences[absence, 0]]
            returns[absence] = -1
        limit_s = slowest_s


@part
def go_back(a: Any, pace_s: Any, held: Any, absences: Any, budget: int) -> Any:
    """Return before which step each absence returns, -1 where it is too short; add early ones to `held`.

    The result is empty where memory does not suffice.
    """
    count, steps = len(absences), len(pace_s)
    returns = np.full(count, -1)
    queue = by_step(absences[:, 2].copy(), steps)
    queue = queue[by_step(steps - absences[queue, 3], steps)]
    ending = by_step(steps - 1 - absences[:, 2], steps)
    ends_s = np.zeros(count)
    state = np.zeros(count, np.int8)  # 1: on its way, 2: done
    head = tail = at_end = 0
    time_s = link_s = 0.0
    early = np.int64(0)
    while tail < count and absences[queue[tail], 3] == steps:
        returns[queue[tail]] = steps
        state[queue[tail]] = 2
        tail += 1
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
        time_s += pace_s[step]
        while tail < count and absences[queue[tail], 3] == step:
            absence = queue[tail]
            link_s = max(time_s, link_s) + a.prefetch_s[absences[absence, 0]]
            ends_s[absence] = link_s
            state[absence] = 1
            early += a.size_bytes[absences[absence, 0]]
            tail += 1
    for absence in range(count):
        if state[absence] == 1:
            returns[absence] = 0
    return returns


@part
def go_forward(a: Any, program: Any, held: Any, absences: Any, returns: Any, budget: int, slowest_s: float) -> Any:
    """Return the step before which each absent block is freed (-1: it stays), the seconds of the step, and its peak.

    The time is infinite where memory does not suffice, or the step takes longer than `slowest_s`.
    """
    order, awaited = program.order, program.awaited
    count, steps, sizes = len(absences), len(order), a.size_bytes[absences[:, 0]]
    leaves, waiting = np.full(count, -1), np.zeros(count, np.bool_)
    writing, ending = by_step(absences[:, 1].copy(), steps), by_step(absences[:, 2].copy(), steps)
    returning = by_step(returns, steps)  # absences are in the order in which they end
    copied_s, here_s, beside_s = np.zeros(count), np.zeros(steps + 1), np.zeros(3)
    leaving = [(0.0, np.int64(0)) for _ in range(0)]
    at_writing, at_ending, at_returning = np.sum(absences[:, 1] < 0), np.sum(absences[:, 2] < 0), 0
    for absence in ending[:at_ending]:
        leaves[absence] = 0
    time_s = out_s = back_s = 0.0
    left_s = np.sum(a.duration_s[order])
    late = peak = np.int64(0)
    for step in range(steps):
        start = at_returning
        while at_returning < count and returns[returning[at_returning]] <= step:
            absence = returning[at_returning]
            if waiting[absence]:
                waiting[absence] = False
                late -= sizes[absence]
            at_returning += 1
        time_s, late = _leave(sizes, leaving, waiting, leaves, step, budget - held[step], time_s, late)
        peak = max(peak, held[step] + late)
        if held[step] + late > budget or time_s + left_s > slowest_s:
            return leaves, np.inf, peak
        for absence in returning[start:at_returning]:
            if leaves[absence] >= 0:
                back_s = max(back_s, time_s) + a.prefetch_s[absences[absence, 0]]
                here_s[absences[absence, 3]] = back_s
                beside_s[1] += a.copy_delay_s[absences[absence, 0]]
        time_s = end_of_step_s(a, order[step], step, awaited, here_s, beside_s, time_s)
        left_s -= a.duration_s[order[step]]
        start = at_writing
        while at_writing < count and absences[writing[at_writing], 1] == step:
            at_writing += 1
        if at_writing > start:
            written_s = beside_s[0] if awaited[step] >= 0 else time_s
            out_s = _copy_out(a, absences, writing[start:at_writing], returns, copied_s, beside_s, written_s, out_s)
        while at_ending < count and absences[ending[at_ending], 2] == step:
            absence = ending[at_ending]
            if returns[absence] >= 0:
                heappush(leaving, (copied_s[absence], absence))
                waiting[absence] = True
                late += sizes[absence]
            at_ending += 1
    time_s, late = _leave(sizes, leaving, waiting, leaves, steps, np.int64(-1), time_s, late)
    return leaves, max(time_s, beside_s[0], _host_end_s(a, absences, copied_s, steps)), peak


@part
def _host_end_s(a: Any, absences: Any, copied_s: Any, steps: int) -> float:
    """Return when the host has run its tasks, each after the copies of what it reads."""
    ready_s = np.zeros(len(a.size_bytes))
    for absence in range(len(absences)):
        if absences[absence, 3] == steps:
            ready_s[absences[absence, 0]] = copied_s[absence]
    host_s = 0.0
    for task in range(len(a.host_s)):
        for i in range(a.sent_at[task], a.sent_at[task + 1]):
            host_s = max(host_s, ready_s[a.sent[i]])
        host_s += a.host_s[task]
    return host_s


@part
def _leave(sizes: Any, leaving: Any, waiting: Any, leaves: Any, step: int, room: Any, time_s: float, late: Any) -> Any:
    """Free blocks whose copies ended, wait for more where memory lacks; return the time and what is left."""
    while leaving:
        end_s, absence = leaving[0]
        if waiting[absence]:
            if end_s > time_s and late <= room:
                break
            time_s = max(time_s, end_s)
            late -= sizes[absence]
            leaves[absence] = step
            waiting[absence] = False
        heappop(leaving)
    return time_s, late


@part
def _copy_out(
    a: Any, absences: Any, written: Any, returns: Any, copied_s: Any, beside_s: Any, time_s: float, out_s: float
) -> float:
    """Queue the copies of blocks that have just been written, each once; return when the link is free.

    Args:
        beside_s: see `end_of_step_s`; the next kernel is delayed.
    """
    for i in range(len(written)):
        absence = written[i]
        if returns[absence] < 0:
            continue
        is_new = True
        for earlier in written[:i]:
            if absences[earlier, 0] == absences[absence, 0] and returns[earlier] >= 0:
                copied_s[absence], is_new = copied_s[earlier], False
        if is_new:
            out_s = max(out_s, time_s) + a.offload_s[absences[absence, 0]]
            copied_s[absence] = out_s
            beside_s[1] += a.copy_delay_s[absences[absence, 0]]
    return out_s
