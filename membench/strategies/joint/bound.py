"""A lower bound on the time of a step within a budget: a linear program that every schedule of the class satisfies.

The class: schedules that run the graph's tasks in its order on one stream, each for the seconds of its fastest algorithm or
longer, except tasks of the host, which run one after another beside that stream, each after copies of what it reads, and
collectives, those of each axis one after another; run each update on the host or on the device, as they choose (`Residence`), and
at any time behind its gradients; run tasks of the forward pass again at any time, as often as they like, and gather weights again;
copy blocks to the host and back at any time, as often as they like, over a link that carries one block at a time in each direction; hold results from when they are made to the end; and spend seconds on savings (`Saving`: an encoding, or an
algorithm with less workspace). Of the caller's blocks those with a home in host memory are there before and after the step, or
on the device throughout; the others are on the device throughout.

Relaxations, each of which only lowers the bound. A *gap* is the time between two uses of a block, and a fraction of it may be
kept, copied, recomputed or saved. Copies are a fluid that flows whenever the link is free. A block whose copy returned last is
counted as away as soon as the fluid allows; one that was recomputed last, from its use on until the segment of the step in
which it is recomputed. A block with its home in host memory is counted as away before its first use and behind its last one if
it is copied to the device, and that share of it is copied back where it is written. Recomputation takes the seconds of the
tasks that write the block, and neither memory nor their inputs; what is copied to the host after it takes time on the link,
and memory at the end of its segment until it has been copied. A fraction of an update may run on the host. Memory of a long
step is limited at some tasks, its *moments*: of tasks in a row, at the one that holds most. Units between the same moments
share variables, which are sums over them. Collectives take their time in windows of the step (`windows`), those that gather weights
again in the windows around their gap.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, pairwise

import numpy as np
from scipy.optimize import linprog

from membench.core.task_graph import RESULT_ROLES
from membench.planning.choices.problem import Problem
from membench.strategies.joint.gaps import ANYWHERE, Gap, Saved, Saving, Span, find_gaps
from membench.strategies.joint.inequalities import Inequalities
from membench.strategies.joint.windows import boundaries, find_exchanges

OPTIMAL, INFEASIBLE = 0, 2
"""Statuses of scipy's `linprog`."""

UNITS_OF_TIME, UNITS_OF_BYTES = 1e4, 1e3
"""In the computing of a step, and in the largest block."""

HOST_ROWS = 8
"""Number of updates from which on the host's time is limited."""

MOMENTS = 750
"""Number of moments: more of them raise the bound of a deep network by less than 0.1 %."""


@dataclass(frozen=True)
class Residence:
    """An update on the device in place of one on the host: its weights and states are on the device throughout.

    Attributes:
        tasks: of the update, on the host in the problem's graph.
        visitors: its weights and gradients, which then do not leave; they have gaps (`Gap.leaves`).
        states_bytes: of the blocks that only these tasks use.
        device_s: seconds of the update on the device.
    """

    tasks: tuple[int, ...]
    visitors: frozenset[int]
    states_bytes: int
    device_s: float


@dataclass(frozen=True)
class Relaxation:
    """The solution of the linear program.

    Attributes:
        step_s: the lower bound.
        offloaded: the fraction of each unit that is copied, `recomputed` that is recomputed, by unit.
        saved: the fraction of each saving that is taken.
        moved: the fraction of each residence's update that the host runs.
    """

    step_s: float
    offloaded: dict[int, float]
    recomputed: dict[int, float]
    saved: dict[Saving, float] = field(default_factory=dict)
    moved: dict[Residence, float] = field(default_factory=dict)


def relax(
    problem: Problem,
    budget_bytes: int,
    savings: Sequence[Saving] = (),
    residences: Sequence[Residence] = (),
    *,
    segments: int = 3,
    moments: int = MOMENTS,
) -> Relaxation | None:
    """Solve the program; None where the solver proves that no schedule of the class keeps the budget.

    Args:
        savings: what schedules may save in addition.
        residences: updates of the problem's that may run on the device; the others run on the host.
        segments: parts of the step: the forward pass, and the others of the backward pass.
        moments: number of tasks whose memory is limited; all tasks where there are at most twice as many.
    """
    return _Program(problem, budget_bytes, savings, residences, segments, moments).solve()


class _Program:
    """The linear program; bytes and seconds in units of the largest block and of the step: small numbers are zero to the solver.

    Variables of each moment: `extra` seconds between it and the one before; bytes that have not left when its task ends
    (`ended`) and when it starts (`leaving`); bytes fetched ahead while it runs (`ahead`) and when it starts (`before`); bytes
    that are away (`away`).
    """

    def __init__(
        self,
        problem: Problem,
        budget_bytes: int,
        savings: Sequence[Saving],
        residences: Sequence[Residence],
        segments: int,
        moments: int,
    ) -> None:
        self._problem = problem
        durations_s = problem.duration_s[: len(problem.graph.tasks)]
        self._compute_s = sum(durations_s)
        self._unit_s = self._compute_s / UNITS_OF_TIME or 1.0
        self._durations = [duration_s / self._unit_s for duration_s in durations_s]
        self._gaps = list(find_gaps(problem, problem.least_bytes))
        self._unit_bytes = max((gap.size_bytes for gap in self._gaps), default=1) / UNITS_OF_BYTES
        self._budget = budget_bytes / self._unit_bytes
        self._segment = self._segments(segments)
        self._residences = residences
        held = self._held()
        self._moments = self._choose_moments(held, moments)
        self._count = len(self._moments)
        self._starts = np.concatenate(([0.0], np.cumsum(self._durations)))
        self._segment_end = {segment: task + 1 for task, segment in enumerate(self._segment)}
        self._variables = 0
        self._rows, self._equal = Inequalities(), Inequalities()
        new = partial(self._new, self._count)
        self._extra, self._ended, self._leaving, self._ahead, self._before, self._away = (
            new() for _ in range(6)
        )
        self._last_extra = self._new(1)  # behind the last task
        self._exchanges = find_exchanges(problem)
        self._gathered: list[tuple[Span, list[int]]] = []  # again, and the variables of their number
        # by moment, or by segment: variables and their coefficients
        self._becomes_away, self._out, self._back, self._in_use, self._spent, self._out_of_segment = (
            defaultdict[int, dict[int, float]](dict) for _ in range(6)
        )
        self._savings: dict[tuple[int, int], list[Saving]] = defaultdict(list)
        for saving in savings:
            self._savings[saving.group].append(saving)
        self._saved: list[tuple[list[int], list[tuple[int, int]]]] = []  # variables, and groups of savings
        self._keys: dict[int, list[tuple[int, int]]] = defaultdict(
            list
        )  # of a unit's spans, as groups of savings
        self._moved = {residence: self._new(1) for residence in residences}
        self._moved_of = {
            block: variable for residence, variable in self._moved.items() for block in residence.visitors
        }
        self._spent_s: dict[int, float] = defaultdict(float)  # by segment, if all updates are on the device
        self._groups = self._equal_units()
        self._shared = [self._add_unit(spans, units) for spans, units in self._groups]
        self._add_other_savings()
        self._add_residences()
        self._add_windows()
        self._add_queues()
        self._add_memory([held[task] for task in self._moments])
        self._add_segments([held[task] for task in self._moments])
        self._add_seconds()

    def solve(self) -> Relaxation | None:
        objective = np.zeros(self._variables)
        objective[[*range(self._extra, self._extra + self._count), self._last_extra]] = 1.0
        solution = linprog(
            objective,
            A_ub=self._rows.matrix(self._variables),
            b_ub=self._rows.limits,
            A_eq=self._equal.matrix(self._variables),
            b_eq=self._equal.limits,
            bounds=(0, None),
            method="highs-ipm",
        )
        if solution.status == INFEASIBLE:
            return None
        if solution.status != OPTIMAL:  # of little use, but valid
            return Relaxation(self._compute_s, {}, {})
        offloaded: dict[int, float] = {}
        recomputed: dict[int, float] = {}
        for (_, units), (offloads, remakes) in zip(self._groups, self._shared, strict=True):
            copied = max((float(solution.x[variable]) for variable in offloads), default=0.0)
            remade = sum(float(solution.x[variable]) for variable in remakes)
            for number, unit in enumerate(units):  # the first of them are recomputed, the next are copied
                recomputed[unit] = min(1.0, max(0.0, remade - number))
                offloaded[unit] = min(1.0, max(0.0, remade + copied - number)) - recomputed[unit]
        saved: dict[Saving, float] = {}
        for variables, groups in self._saved:
            for number, group in enumerate(groups):
                for saving, variable in zip(self._savings[group], variables, strict=True):
                    saved[saving] = min(1.0, max(0.0, float(solution.x[variable]) - number))
        step_s = self._compute_s + max(0.0, solution.fun) * self._unit_s
        moved = {residence: float(solution.x[variable]) for residence, variable in self._moved.items()}
        return Relaxation(step_s, offloaded, recomputed, saved, moved)

    def _new(self, count: int) -> int:
        """Add variables, and return the number of the first."""
        self._variables += count
        return self._variables - count

    def _segments(self, segments: int) -> list[int]:
        """Return the segment of each task: the forward pass is one, the backward pass has parts of equal time."""
        turn = self._problem.turn
        backward = sum(self._durations[turn:]) or 1.0
        found, passed = [0] * turn, 0.0
        for duration in self._durations[turn:]:
            found.append(1 + min(segments - 2, int(passed / backward * (segments - 1))))
            passed += duration
        return found

    def _choose_moments(self, held: Sequence[float], moments: int) -> list[int]:
        """Return tasks in order: in parts of equal time the one that holds most, and the last task of each segment."""
        if len(held) <= 2 * moments:
            return list(range(len(held)))
        ends = np.cumsum(self._durations)
        part = (ends * (moments / ends[-1])).astype(np.int64)
        most: dict[int, int] = {}
        for task, number in enumerate(part.tolist()):
            if held[task] > held[most.setdefault(number, task)]:
                most[number] = task
        last_of_segment = (task for task, (a, b) in enumerate(pairwise([*self._segment, -1])) if a != b)
        return sorted({*most.values(), *last_of_segment})

    def _at(self, position: int) -> int:
        """Return the first moment at or behind the task at this position."""
        return bisect_left(self._moments, position)

    def _span(self, gap: Gap) -> Span | None:
        """Return the gap in moments; None where none lies in it."""
        start, end = self._at(gap.last + 1), self._at(gap.first)
        again = self._at(gap.end + 1) if gap.last < 0 else None
        if start == end and again is None:
            return None
        remakes = []
        if gap.remake_s is not None:
            for segment in range(self._segment[gap.last + 1], self._segment[gap.first] + 1):
                away_until = min(end, self._at(self._segment_end[segment]))
                if away_until > start:
                    remakes.append((segment, away_until))
        out = None if gap.written is None else self._at(gap.written + 1)
        in_use = range(0) if out is None else range(out, start if again is None else again)
        savings = self._in_moments((gap.block, gap.first))
        return Span(
            gap.size_bytes,
            start,
            end,
            out,
            in_use,
            again,
            gap.leaves,
            tuple(remakes),
            gap.remake_s,
            savings,
            gap.gathers,
        )

    def _in_moments(self, group: tuple[int, int]) -> tuple[Saved, ...]:
        """Return the savings of a group in moments."""
        return tuple(
            Saved(
                tuple((size, self._at(a), self._at(b)) for size, a, b in saving.frees),
                saving.cost_s,
                ANYWHERE if saving.task == ANYWHERE else self._segment[saving.task],
            )
            for saving in self._savings.get(group, ())
        )

    def _equal_units(self) -> list[tuple[tuple[Span, ...], list[int]]]:
        """Return the spans of units, each with the units that have these."""
        spans: dict[int, list[Span]] = defaultdict(list)
        for gap in self._gaps:
            alone = -1 - gap.block  # a block that is in no unit
            if span := self._span(gap):
                unit = gap.unit if gap.unit >= 0 else alone
                spans[unit].append(span)
                self._keys[unit].append((gap.block, gap.first))
        units: dict[tuple[Span, ...], list[int]] = defaultdict(list)
        for unit, spans_of_unit in spans.items():
            units[tuple(spans_of_unit)].append(unit)
        return list(units.items())

    def _add_unit(self, spans: Sequence[Span], units: Sequence[int]) -> tuple[list[int], list[int]]:
        """Add the variables of equal units, and return those for copying to the host, and those for recomputing."""
        remakes: dict[int, int] = {}  # by segment
        offloads = []
        for number, span in enumerate(spans):
            saved = self._add_savings(span.savings, [self._keys[unit][number] for unit in units])
            offloads.append(self._add_choices(span, saved, len(units), remakes))
            if span.leaves:
                blocks = [self._keys[unit][number][0] for unit in units]
                self._add_departures(offloads[-1], blocks)
        if remakes and any(span.gathers for span in spans):
            away = [span for span in spans if span.remakes]
            around = replace(
                away[0], start=min(span.start for span in away), end=max(span.end for span in away)
            )
            self._gathered.append((around, list(remakes.values())))
        leaves = [span.out is not None or span.again is not None for span in spans]
        if spans[0].again is not None:  # a block that is on the device before the step leaves in no other gap
            for offload in offloads[1:]:
                self._rows.add(0.0, {offload: 1.0, offloads[0]: -1.0})
        return list(compress(offloads, leaves)), list(remakes.values())

    def _add_departures(self, offload: int, blocks: Sequence[int]) -> None:
        """Add that of these blocks those leave in their gap whose update the host runs."""
        terms = defaultdict[int, float](float, {offload: 1.0})
        for block in blocks:
            if block in self._moved_of:
                terms[self._moved_of[block]] -= 1.0
        self._equal.add(float(sum(block not in self._moved_of for block in blocks)), terms)

    def _add_residences(self) -> None:
        """Add the states and the seconds of updates on the device, and the host's time, for which the step is to last.

        Of the updates from any one on, in the order in which they run, none starts before the first of their gradients is
        complete: they take place in what the step lasts from there on.
        """
        problem = self._problem
        for residence, variable in self._moved.items():
            self._rows.add(1.0, {variable: 1.0})
            self._make_away(variable, residence.states_bytes / self._unit_bytes, 0, self._count)
            segment = self._segment[residence.tasks[0]]
            self._spent_s[segment] += residence.device_s / self._unit_s
            self._spent[segment][variable] = -residence.device_s / self._unit_s
        moved_by = {task: variable for residence, variable in self._moved.items() for task in residence.tasks}
        written = {
            block: task.index for task in problem.graph.tasks for block in task.writes if not task.on_host
        }
        tasks = list(problem.host_s)
        complete = [max((written[block] for block in problem.sent[task]), default=0) for task in tasks]
        for first in range(0, len(tasks), max(1, len(tasks) // HOST_ROWS)):
            start = min(complete[first:])
            later = range(self._at(start + 1), self._count)
            terms = defaultdict[int, float](float, {self._extra + moment: -1.0 for moment in later})
            terms[self._last_extra] = -1.0
            limit = self._compute_s / self._unit_s - float(self._starts[start])
            for task in tasks[first:]:
                if task in moved_by:
                    terms[moved_by[task]] += problem.host_s[task] / self._unit_s
                else:
                    limit -= problem.host_s[task] / self._unit_s
            self._rows.add(limit, terms)

    def _add_savings(self, savings: Sequence[Saved], groups: list[tuple[int, int]]) -> dict[int, float]:
        """Add the variables of equal groups of savings, and return them with their coefficients among the choices."""
        variables = [self._new(1) for _ in savings]
        self._saved.append((variables, groups))
        for variable, saving in zip(variables, savings, strict=True):
            self._spent[saving.segment][variable] = saving.cost_s / self._unit_s
            for size_bytes, start, end in saving.frees:
                self._make_away(variable, size_bytes / self._unit_bytes, start, end)
        return dict.fromkeys(variables, 1.0)

    def _add_other_savings(self) -> None:
        """Add the savings that are not of a gap."""
        added = {group for _, groups in self._saved for group in groups}
        groups: dict[tuple[Saved, ...], list[tuple[int, int]]] = defaultdict(list)
        for group in self._savings.keys() - added:
            groups[self._in_moments(group)].append(group)
        for savings, equal in sorted(groups.items(), key=lambda item: min(item[1])):
            self._rows.add(float(len(equal)), self._add_savings(savings, sorted(equal)))

    def _add_choices(self, span: Span, saved: dict[int, float], count: int, remakes: dict[int, int]) -> int:
        """Add the variables of a gap, and return the one for copying; what is left of their number is kept."""
        size = span.size_bytes / self._unit_bytes
        offload = self._new(1)
        choices = {offload: 1.0} | saved
        if not span.is_sent:  # what is sent is gone behind its copy or, with an update on the device, at once
            self._make_away(offload, size, span.start, span.end)
        self._back[span.end][offload] = size
        if span.out is not None:
            self._out[span.out][offload] = size
        for moment in span.in_use:
            self._in_use[moment][offload] = size
        if span.again is not None:
            self._make_away(offload, size, span.again, self._count)
        if span.remake_s is not None:
            for segment, away_until in span.remakes:
                remade, remade_and_copied = self._new(1), self._new(1)
                choices |= {remade: 1.0, remade_and_copied: 1.0}
                self._make_away(remade, size, span.start, away_until)
                self._make_away(remade_and_copied, size, span.start, span.end)
                self._back[span.end][remade_and_copied] = size
                self._out_of_segment[segment][remade_and_copied] = size
                if segment not in remakes:  # once for all blocks of a unit
                    remakes[segment] = self._new(1)
                    self._spent[segment][remakes[segment]] = span.remake_s / self._unit_s
                self._rows.add(0.0, {remade: 1.0, remade_and_copied: 1.0, remakes[segment]: -1.0})
        self._rows.add(float(count), choices)
        return offload

    def _make_away(self, variable: int, size: float, start: int, end: int) -> None:
        if start == end:
            return
        for moment, change in ((start, size), (end, -size)):
            self._becomes_away[moment][variable] = self._becomes_away[moment].get(variable, 0.0) + change

    def _add_windows(self) -> None:
        """Add that what collectives take in each window is at most what the step takes in it."""
        released = [(self._at(each.released + 1), self._at(each.due), each) for each in self._exchanges]
        ends = boundaries([due for _, due, _ in released])
        for axis in sorted({each.axis for each in self._exchanges}):
            for start in boundaries([start for start, _, _ in released]):
                for end in ends:
                    inside = [
                        each for a, b, each in released if a >= start and b <= end and each.axis == axis
                    ]
                    if inside:
                        self._add_window(start, end, axis, sum(each.time_s for each in inside))

    def _add_window(self, start: int, end: int, axis: str, time_s: float) -> None:
        """Add a window from behind the moment before one to the start of another."""
        from_s = float(self._starts[self._moments[start - 1] + 1]) if start else 0.0
        to_s = float(self._starts[self._moments[end] if end < self._count else -1])
        terms = {self._extra + moment: -1.0 for moment in range(start, min(end + 1, self._count))}
        if end == self._count:
            terms[self._last_extra] = -1.0
        for span, variables in self._gathered:
            if span.start >= start and span.end <= end:
                again_s = sum(each_s for name, each_s, _ in span.gathers if name == axis)
                terms |= dict.fromkeys(variables, again_s / self._unit_s)
        self._rows.add(to_s - from_s - time_s / self._unit_s, terms)

    def _add_queues(self) -> None:
        """Add the fluid on the link, out in the order of time and back with time reversed."""
        out_rate = self._rate(self._problem.offload_s)
        back_rate = self._rate(self._problem.prefetch_s)
        first = float(self._starts[self._moments[0]]) if self._moments else 0.0
        self._rows.add(back_rate * first, {self._before: 1.0, self._extra: -back_rate} | self._back[0])
        last = self._ended + self._count - 1
        self._rows.add(0.0, {last: 1.0, self._last_extra: -out_rate} | self._out[self._count])
        for moment, task in enumerate(self._moments):
            following, extra = moment + 1, self._extra + moment + 1
            duration = self._durations[task]
            self._rows.add(out_rate * duration, {self._leaving + moment: 1.0, self._ended + moment: -1.0})
            self._rows.add(back_rate * duration, {self._ahead + moment: 1.0, self._before + moment: -1.0})
            if following < self._count:
                between = max(0.0, float(self._starts[self._moments[following]] - self._starts[task + 1]))
                queue = {self._ended + moment: 1.0, self._leaving + following: -1.0, extra: -out_rate}
                self._rows.add(out_rate * between, queue | self._out[following])
                queue = {self._before + following: 1.0, self._ahead + moment: -1.0, extra: -back_rate}
                self._rows.add(back_rate * between, queue | self._back[following])

    def _rate(self, seconds: Sequence[float]) -> float:
        """Return the rate of the fastest copy, in the program's units."""
        per_s = (gap.size_bytes / self._unit_bytes / seconds[gap.block] for gap in self._gaps)
        return max(per_s, default=1.0) * self._unit_s

    def _add_memory(self, held: Sequence[float]) -> None:
        for moment, held_there in enumerate(held):
            change = {variable: -value for variable, value in self._becomes_away[moment].items()}
            before = {self._away + moment - 1: -1.0} if moment else {}
            self._equal.add(0.0, {self._away + moment: 1.0} | before | change)
            terms = {self._away + moment: -1.0, self._ahead + moment: 1.0}
            self._rows.add(self._budget - held_there, terms)
            in_use = {variable: -value for variable, value in self._in_use[moment].items()}
            self._rows.add(self._budget - held_there, terms | {self._leaving + moment: 1.0} | in_use)

    def _add_segments(self, held: Sequence[float]) -> None:
        """Add that what is written in some segments, to be copied to the host, is there at their end, or held.

        `_add_queues` has no arrivals of what is made again: when in its segment that happens is not decided.
        """
        rate = self._rate(self._problem.offload_s)
        segment_of = [self._segment[task] for task in self._moments]
        ends = [n for n, (a, b) in enumerate(pairwise([*segment_of, -1])) if a != b]
        for end in ends:
            remaining = self._new(1)
            in_use = {variable: -value for variable, value in self._in_use[end].items()}
            terms = {self._away + end: -1.0, self._ahead + end: 1.0, remaining: 1.0}
            self._rows.add(self._budget - held[end], terms | in_use)
            for start in (0, *(before + 1 for before in ends if before < end)):
                begins = self._starts[self._moments[start - 1] + 1] if start else 0.0
                limit = rate * float(self._starts[self._moments[end]] - begins)
                extra = {self._extra + moment: -rate for moment in range(start, end + 1)}
                out = dict(item for moment in range(start, end + 1) for item in self._out[moment].items())
                for segment in range(segment_of[start], segment_of[end] + 1):
                    out |= self._out_of_segment[segment]
                self._rows.add(limit, extra | out | {remaining: -1.0})

    def _add_seconds(self) -> None:
        """Add that the extra seconds, of each segment and of all, suffice for what is computed again in them."""
        everything: dict[int, float] = {}
        for terms in self._spent.values():
            everything |= terms
        delayed_s = sum(each.delay_s for each in self._exchanges) / self._unit_s
        for span, variables in self._gathered:
            for variable in variables:
                everything[variable] += sum(delay_s for _, _, delay_s in span.gathers) / self._unit_s
        extra = {self._extra + moment: -1.0 for moment in range(self._count)} | {self._last_extra: -1.0}
        self._rows.add(-sum(self._spent_s.values()) - delayed_s, extra | everything)
        of_segment: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for moment, task in enumerate(self._moments):
            of_segment[self._segment[task]][self._extra + moment] = -1.0
        for segment, seconds in of_segment.items():
            self._rows.add(-self._spent_s[segment], seconds | self._spent[segment])

    def _held(self) -> list[float]:
        """Return what each task holds if blocks stay in their gaps; blocks without a gap count only while they are used."""
        problem, graph = self._problem, self._problem.graph
        change = [0] * (len(graph.tasks) + 1)
        for gap in self._gaps:
            if gap.is_sent:
                continue
            change[gap.last + 1] += gap.size_bytes
            change[gap.first] -= gap.size_bytes
            if gap.last < 0:
                change[gap.end + 1] += gap.size_bytes
        states_bytes = sum(residence.states_bytes for residence in self._residences)
        held, results, found = graph.external_bytes + states_bytes, 0, []
        for task in graph.tasks:
            held += change[task.index]
            touched = (graph.blocks[block] for block in problem.touched[task.index])
            used = sum(b.size_bytes for b in touched if not b.is_external and b.role not in RESULT_ROLES)
            results += graph.size_bytes(b for b in task.creates if graph.blocks[b].role in RESULT_ROLES)
            found.append((held + used + results + task.workspace_bytes) / self._unit_bytes)
        return found
