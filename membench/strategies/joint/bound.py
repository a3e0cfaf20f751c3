"""A lower bound on the time of a step within a budget: a linear program that every schedule of the class satisfies.

The class: schedules that run the graph's tasks in its order on one stream, each for the seconds of its fastest
algorithm or longer, except tasks of the host, which run one after another beside that stream, each after copies of what
it reads, and collectives, those of each axis one after another; run each update on the host or on the device, as they
choose (`Residence`), and at any time behind its gradients; run tasks of the forward pass again at any time, as often as
they like, and gather weights again; copy blocks to the host and back at any time, as often as they like, over a link
that carries one block at a time in each direction; hold results from when they are made to the end; and spend seconds
on savings (`Saving`: an encoding, or an algorithm with less workspace). Of the caller's blocks those with a home in
host memory are there before and after the step, or on the device throughout; the others are on the device throughout.

Relaxations, each of which only lowers the bound. A *gap* is the time between two uses of a block, and a fraction of it
may be kept, copied, recomputed or saved. Copies are a fluid that flows whenever the link is free. A block whose copy
returned last is counted as away as soon as the fluid allows; one that was recomputed last, from its use on until the
segment of the step in which it is recomputed. A block with its home in host memory is counted as away before its first
use and behind its last one if it is copied to the device, and that share of it is copied back where it is written.
Recomputation takes the seconds of the tasks that write the block, and neither memory nor their inputs; what is copied
to the host after it takes time on the link, and memory at the end of its segment until it has been copied. A fraction
of an update may run on the host. Memory of a long step is limited at some tasks, its *moments*: of tasks in a row, at
the one that holds most. Units between the same moments share variables, which are sums over them. Collectives take
their time in windows of the step (`windows`), those that gather weights again in the windows around their gap.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, pairwise

import numpy as np

from membench.planning.choices.problem import Problem
from membench.strategies.joint.gaps import Saved, Saving, Span, find_gaps
from membench.strategies.joint.homes import Residence
from membench.strategies.joint.inequalities import INFEASIBLE, OPTIMAL, Inequalities, minimize
from membench.strategies.joint.moments import Moments, held_by_tasks, segments_of
from membench.strategies.joint.relaxation import Relaxation
from membench.strategies.joint.windows import find_exchanges, windows

UNITS_OF_TIME, UNITS_OF_BYTES = 1e4, 1e3
"""In the computing of a step, and in the largest block."""

HOST_ROWS = 8
"""Number of updates from which on the host's time is limited."""

MOMENTS = 750
"""Number of moments: more of them raise the bound of a deep network by less than 0.1 %."""


def relax(
    problem: Problem,
    budget_bytes: int,
    savings: Sequence[Saving] = (),
    residences: Sequence[Residence] = (),
    *,
    defers: bool = False,
    segments: int = 3,
    moments: int = MOMENTS,
) -> Relaxation | None:
    """Solve the program; None where the solver proves that no schedule of the class keeps the budget.

    Args:
        savings: what schedules may save in addition.
        residences: updates of the problem's that may run on the device; the others run on the host.
        defers: they may also run beside the next step's forward pass.
        segments: parts of the step: the forward pass, and the others of the backward pass.
        moments: number of tasks whose memory is limited; all tasks where there are at most twice as many.
    """
    return _LinearProgram(problem, budget_bytes, savings, residences, defers, segments, moments).solve()


class _LinearProgram:
    """The linear program, in units of the largest block and of the step: small numbers are zero to the solver.

    Variables of each moment: `extra` seconds between it and the one before; bytes that have not left when its task ends
    (`ended`) and when it starts (`leaving`); bytes fetched ahead while it runs (`ahead`) and when it starts (`before`);
    bytes that are away (`away`).
    """

    def __init__(
        self,
        problem: Problem,
        budget_bytes: int,
        savings: Sequence[Saving],
        residences: Sequence[Residence],
        defers: bool,
        segments: int,
        moments: int,
    ) -> None:
        self._problem, self._residences, self._defers = problem, residences, defers
        durations_s = problem.duration_s[: len(problem.graph.tasks)]
        self._compute_s = sum(durations_s)
        self._unit_s = self._compute_s / UNITS_OF_TIME or 1.0
        self._durations = [duration_s / self._unit_s for duration_s in durations_s]
        self._starts = np.concatenate(([0.0], np.cumsum(self._durations)))
        self._gaps = list(find_gaps(problem, problem.least_bytes))
        self._unit_bytes = max((gap.size_bytes for gap in self._gaps), default=1) / UNITS_OF_BYTES
        states_bytes = sum(residence.states_bytes for residence in residences)
        held = [size_bytes / self._unit_bytes for size_bytes in held_by_tasks(problem, self._gaps, states_bytes)]
        # no more than everything at once: the solver does not end with numbers that are far larger than the others
        most = max(held) + sum(block.size_bytes for block in problem.graph.blocks) / self._unit_bytes
        self._budget = min(budget_bytes / self._unit_bytes, most)
        self._in = Moments(self._durations, segments_of(self._durations, problem.turn, segments), held, moments)
        self._moments = self._in.tasks
        self._exchanges = find_exchanges(problem)
        self._savings: dict[tuple[int, int], list[Saving]] = defaultdict(list)
        for saving in savings:
            self._savings[saving.group].append(saving)
        self._prepare()
        self._add_rows([held[task] for task in self._moments])

    def _add_rows(self, held: Sequence[float]) -> None:
        """Add all inequalities.

        Args:
            held: at each moment, if blocks stay in their gaps.
        """
        self._groups = self._equal_units()
        self._shared = [self._add_unit(spans, units) for spans, units in self._groups]
        self._add_other_savings()
        self._add_residences()
        for window in windows(self._exchanges, self._in.at):
            self._add_window(*window)
        self._add_queues()
        self._add_memory(held)
        self._add_segments(held)
        self._add_seconds()

    def _prepare(self) -> None:
        """Make the variables of each moment and of each residence, and the terms that choices add to."""
        self._variables, self._count = 0, len(self._moments)
        self._rows, self._equal = Inequalities(), Inequalities()
        new = partial(self._new, self._count)
        self._extra, self._ended, self._leaving = new(), new(), new()
        self._ahead, self._before, self._away = new(), new(), new()
        self._last_extra = self._new(1)  # behind the last task
        self._gathered: list[tuple[Span, list[int]]] = []  # again, and the variables of their number
        # by moment, or by segment: variables and their coefficients
        self._becomes_away, self._out, self._back, self._in_use, self._spent, self._out_of_segment = (
            defaultdict[int, dict[int, float]](dict) for _ in range(6)
        )
        self._saved: list[tuple[list[int], list[tuple[int, int]]]] = []  # variables, and groups of savings
        self._keys = defaultdict[int, list[tuple[int, int]]](list)  # of a unit's spans, as groups of savings
        self._moved = {residence: self._new(1) for residence in self._residences}
        self._moved_of = {
            block: variable for residence, variable in self._moved.items() for block in residence.visitors
        }
        self._spent_s = defaultdict[int, float](float)  # by segment, if all updates are on the device

    def solve(self) -> Relaxation | None:
        objective = np.zeros(self._variables)
        objective[[*range(self._extra, self._extra + self._count), self._last_extra]] = 1.0
        solution = minimize(objective, self._rows, self._equal)
        if solution.status == INFEASIBLE:
            return None
        if solution.status != OPTIMAL:  # of little use, but valid
            return Relaxation(self._compute_s, {}, {})
        offloaded, recomputed = dict[int, float](), dict[int, float]()
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

    def _equal_units(self) -> list[tuple[tuple[Span, ...], list[int]]]:
        """Return the spans of units, each with the units that have these."""
        spans: dict[int, list[Span]] = defaultdict(list)
        for gap in self._gaps:
            if span := self._in.span(gap, self._savings):
                unit = gap.unit if gap.unit >= 0 else -1 - gap.block  # which is in no unit
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
            around = replace(away[0], start=min(span.start for span in away), end=max(span.end for span in away))
            self._gathered.append((around, list(remakes.values())))
        leaves = [span.out is not None or span.again is not None for span in spans]
        if spans[0].again is not None:  # a block that is on the device before the step leaves in no other gap
            for offload in offloads[1:]:
                self._rows.add(0.0, {offload: 1.0, offloads[0]: -1.0})
        return list(compress(offloads, leaves)), list(remakes.values())

    def _add_departures(self, offload: int, blocks: Sequence[int]) -> None:
        """Add that of these blocks those leave in their gap whose update the host runs."""
        moved = Counter(self._moved_of[block] for block in blocks if block in self._moved_of)
        terms = {variable: -float(number) for variable, number in moved.items()}
        self._equal.add(float(len(blocks) - moved.total()), {offload: 1.0} | terms)

    def _add_residences(self) -> None:
        """Add the states and the seconds of updates on the device, and the host's time, for which the step is to last.

        Of the updates from any one on, in the order in which they run, none starts before the first of their gradients
        is complete: they take place in what the step lasts from there on, or, deferred, all of them in the whole step.
        """
        problem = self._problem
        for residence, variable in self._moved.items():
            self._rows.add(1.0, {variable: 1.0})
            self._make_away(variable, residence.states_bytes / self._unit_bytes, 0, self._count)
            segment = self._in.segments[residence.tasks[0]]
            self._spent_s[segment] += residence.device_s / self._unit_s
            self._spent[segment][variable] = -residence.device_s / self._unit_s
        moved_by = {task: variable for residence, variable in self._moved.items() for task in residence.tasks}
        written = {block: task.index for task in problem.graph.tasks for block in task.writes if not task.on_host}
        tasks = list(problem.host_s)
        complete = [max((written[block] for block in problem.sent[task]), default=0) for task in tasks]
        for first in range(0, len(tasks), max(1, len(tasks) // (1 if self._defers else HOST_ROWS))):
            start = 0 if self._defers else min(complete[first:])
            later = range(0 if self._defers else self._in.at(start + 1), self._count)
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
            groups[self._in.saved(self._savings[group])].append(group)
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

    def _add_window(self, start: int, end: int, axis: str, time_s: float) -> None:
        """Add that collectives from behind the moment before one to another's start take at most the step's time."""
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
        segment_of = [self._in.segments[task] for task in self._moments]
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
            of_segment[self._in.segments[task]][self._extra + moment] = -1.0
        for segment, seconds in of_segment.items():
            self._rows.add(-self._spent_s[segment], seconds | self._spent[segment])
