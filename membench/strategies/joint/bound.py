"""A lower bound on the time of a step within a budget: a linear program that every schedule of the class satisfies.

The class: schedules that run the graph's tasks in its order on one stream, each for the seconds of its fastest algorithm or
longer; run tasks of the forward pass again at any time, as often as they like; copy blocks to the host and back at any time,
as often as they like, over a link that carries one block at a time in each direction; hold results from when they are made
to the end; and spend seconds on savings (`Saving`: an encoding, or an algorithm with less workspace).

Relaxations, each of which only lowers the bound. A *gap* is the time between two uses of a block, and a fraction of it may be
kept, copied or recomputed, or saved. Copies are a fluid that flows whenever the link is free. A block whose copy returned last is
counted as away as soon as the fluid allows; one that was recomputed last, from its use on until the segment of the step in
which it is recomputed. Recomputation takes the seconds of the tasks that write the block, and neither memory nor their inputs.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from membench.core.task_graph import EXTERNAL_ROLES, RESULT_ROLES
from membench.core.units import MIB
from membench.planning.choices.problem import Problem

OPTIMAL, INFEASIBLE = 0, 2
"""Statuses of scipy's `linprog`."""

ANYWHERE = -1
"""In place of a segment: at any time of the step."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two uses of a block.

    Attributes:
        last: position of the use before; `first`: of the use after.
        written: position after which the copy to the host may start; None: it is on the host, or another gap pays for it.
        remake_s: seconds to compute the block again; None: impossible.
        unit: recomputed together with others of this number.
    """

    block: int
    size_bytes: int
    last: int
    first: int
    written: int | None
    remake_s: float | None
    unit: int


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes that are not held in exchange for seconds of computing.

    Attributes:
        group: at most one of a group is taken. For the block and the first use of a gap: neither is the block then copied
            nor recomputed in that gap.
        frees: bytes, and the tasks from which and before which they are not held.
        cost_s: seconds in addition to those of the tasks.
        task: in whose segment of the step they are spent; `ANYWHERE`: at any time.
    """

    group: tuple[int, int]
    frees: tuple[tuple[int, int, int], ...]
    cost_s: float
    task: int = ANYWHERE


@dataclass
class _Rows:
    """Inequalities, coefficients times variables at most a limit."""

    limits: list[float] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def add(self, limit: float, terms: dict[int, float]) -> None:
        self._rows += [len(self.limits)] * len(terms)
        self._columns += terms
        self._values += terms.values()
        self.limits.append(limit)

    def matrix(self, columns: int) -> coo_array:
        return coo_array((self._values, (self._rows, self._columns)), shape=(len(self.limits), columns))


@dataclass(frozen=True)
class Relaxation:
    """The solution of the linear program.

    Attributes:
        step_s: the lower bound.
        offloaded: the fraction of each unit that is copied, `recomputed` that is recomputed, by unit.
        saved: the fraction of each saving that is taken.
    """

    step_s: float
    offloaded: dict[int, float]
    recomputed: dict[int, float]
    saved: dict[Saving, float] = field(default_factory=dict)


def relax(
    problem: Problem, budget_bytes: int, savings: Sequence[Saving] = (), segments: int = 3
) -> Relaxation | None:
    """Solve the program; None where the solver proves that no schedule of the class keeps the budget."""
    return _Program(problem, budget_bytes, savings, segments).solve()


def find_gaps(problem: Problem, least_bytes: int) -> Iterator[Gap]:
    """Yield the gaps of blocks of at least that size."""
    graph = problem.graph
    uses: dict[int, list[int]] = defaultdict(list)
    written: dict[int, int] = {}
    for task in graph.tasks:
        for block in problem.touched[task.index]:
            uses[block].append(task.index)
        for block in task.writes:
            written[block] = task.index
    for described in graph.blocks:
        block, positions = described.index, uses[described.index]
        if described.role in EXTERNAL_ROLES | RESULT_ROLES or described.size_bytes < least_bytes:
            continue
        gaps = [(a, b) for a, b in pairwise(positions) if b > a + 1]
        longest = max(gaps, key=lambda gap: gap[1] - gap[0], default=None)
        unit = problem.unit_of.get(block, -1)
        for last, first in gaps:
            can_repeat = unit >= 0 and problem.units[unit].makers and last >= written[block]
            start = max((p for p in positions if p <= last and block in graph.tasks[p].writes), default=last)
            yield Gap(
                block,
                described.size_bytes,
                last,
                first,
                start if (last, first) == longest else None,
                problem.units[unit].remake_s if can_repeat else None,
                unit,
            )


class _Program:
    """The linear program; memory in MiB, so that coefficients are of one magnitude.

    Variables of each task: `extra` seconds before it; bytes that have not left when it ends (`ended`) and when it starts
    (`leaving`); bytes fetched ahead while it runs (`ahead`) and when it starts (`before`); bytes that are away (`away`).
    """

    def __init__(self, problem: Problem, budget_bytes: int, savings: Sequence[Saving], segments: int) -> None:
        self._problem = problem
        self._count = len(problem.graph.tasks)
        self._duration_s = problem.duration_s[: self._count]
        self._gaps = list(find_gaps(problem, problem.least_bytes))
        self._budget = budget_bytes / MIB
        self._segment = self._segments(segments)
        self._segment_end = {segment: task + 1 for task, segment in enumerate(self._segment)}
        self._variables = 0
        self._rows, self._equal = _Rows(), _Rows()
        new = partial(self._new, self._count)
        self._extra, self._ended, self._leaving, self._ahead, self._before, self._away = (
            new() for _ in range(6)
        )
        # by task, or by segment: variables and their coefficients
        self._becomes_away, self._out, self._back, self._in_use, self._spent = (
            defaultdict[int, dict[int, float]](dict) for _ in range(5)
        )
        self._remakes: dict[tuple[int, int], int] = {}  # of a unit in a segment
        self._groups: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        self._saved = {saving: self._add_saving(saving) for saving in savings}
        self._offload = [self._add_choices(gap) for gap in self._gaps]
        for group in self._groups.values():
            self._rows.add(1.0, group)
        self._add_queues()
        self._add_memory()
        self._add_seconds()

    def solve(self) -> Relaxation | None:
        objective = np.zeros(self._variables)
        objective[self._extra : self._extra + self._count] = 1.0
        solution = linprog(
            objective,
            A_ub=self._rows.matrix(self._variables),
            b_ub=self._rows.limits,
            A_eq=self._equal.matrix(self._variables),
            b_eq=self._equal.limits,
            bounds=(0, None),
            method="highs",
        )
        if solution.status == INFEASIBLE:
            return None
        if solution.status != OPTIMAL:  # of little use, but valid
            return Relaxation(sum(self._duration_s), {}, {})
        offloaded: dict[int, float] = {}
        for gap, variable in zip(self._gaps, self._offload, strict=True):
            if gap.written is not None:
                offloaded[gap.unit] = max(offloaded.get(gap.unit, 0.0), float(solution.x[variable]))
        recomputed: dict[int, float] = {}
        for (unit, _), variable in self._remakes.items():
            recomputed[unit] = recomputed.get(unit, 0.0) + float(solution.x[variable])
        saved = {saving: float(solution.x[variable]) for saving, variable in self._saved.items()}
        return Relaxation(sum(self._duration_s) + solution.fun, offloaded, recomputed, saved)

    def _new(self, count: int) -> int:
        """Add variables, and return the number of the first."""
        self._variables += count
        return self._variables - count

    def _segments(self, segments: int) -> list[int]:
        """Return the segment of each task: the forward pass is one, the backward pass has parts of equal time."""
        turn = self._problem.turn
        backward_s = sum(self._duration_s[turn:]) or 1.0
        found, passed_s = [0] * turn, 0.0
        for duration_s in self._duration_s[turn:]:
            found.append(1 + min(segments - 2, int(passed_s / backward_s * (segments - 1))))
            passed_s += duration_s
        return found

    def _add_choices(self, gap: Gap) -> int:
        """Add the variables of a gap, and return the one for copying; what is left of 1 is kept."""
        size = gap.size_bytes / MIB
        offload = self._new(1)
        choices = {offload: 1.0}
        self._make_away(offload, size, gap.last + 1, gap.first)
        self._back[gap.first][offload] = size
        if gap.written is not None:
            self._out[gap.written][offload] = size
            for position in range(gap.written + 1, gap.last + 1):
                self._in_use[position][offload] = size
        if gap.remake_s is not None:
            for segment in range(self._segment[gap.last + 1], self._segment[gap.first] + 1):
                variable = self._new(1)
                choices[variable] = 1.0
                self._make_away(variable, size, gap.last + 1, min(gap.first, self._segment_end[segment]))
                self._rows.add(0.0, {variable: 1.0, self._remake(gap.unit, segment, gap.remake_s): -1.0})
            remade_and_copied = self._new(1)
            choices[remade_and_copied] = 1.0
            self._make_away(remade_and_copied, size, gap.last + 1, gap.first)
            self._back[gap.first][remade_and_copied] = size
            self._spent[ANYWHERE][remade_and_copied] = gap.remake_s
        self._rows.add(1.0, choices | self._groups.pop((gap.block, gap.first), {}))
        return offload

    def _add_saving(self, saving: Saving) -> int:
        variable = self._new(1)
        self._groups[saving.group][variable] = 1.0
        for size_bytes, start, end in saving.frees:
            self._make_away(variable, size_bytes / MIB, start, end)
        segment = ANYWHERE if saving.task == ANYWHERE else self._segment[saving.task]
        self._spent[segment][variable] = saving.cost_s
        return variable

    def _make_away(self, variable: int, size: float, start: int, end: int) -> None:
        for task, change in ((start, size), (end, -size)):
            self._becomes_away[task][variable] = self._becomes_away[task].get(variable, 0.0) + change

    def _remake(self, unit: int, segment: int, remake_s: float) -> int:
        """Return the variable for computing a unit again in a segment, once for all its blocks."""
        if (unit, segment) not in self._remakes:
            self._remakes[unit, segment] = self._new(1)
            self._spent[segment][self._remakes[unit, segment]] = remake_s
        return self._remakes[unit, segment]

    def _add_queues(self) -> None:
        """Add the fluid on the link, out in the order of time and back with time reversed."""
        out_rate = self._rate(self._problem.offload_s)
        back_rate = self._rate(self._problem.prefetch_s)
        for task, duration_s in enumerate(self._duration_s):
            following, extra = task + 1, self._extra + task + 1
            self._rows.add(out_rate * duration_s, {self._leaving + task: 1.0, self._ended + task: -1.0})
            self._rows.add(back_rate * duration_s, {self._ahead + task: 1.0, self._before + task: -1.0})
            if following < self._count:
                queue = {self._ended + task: 1.0, self._leaving + following: -1.0, extra: -out_rate}
                self._rows.add(0.0, queue | self._out[task])
                queue = {self._before + following: 1.0, self._ahead + task: -1.0, extra: -back_rate}
                self._rows.add(0.0, queue | self._back[following])

    def _rate(self, seconds: Sequence[float]) -> float:
        """Return MiB per second of the fastest copy."""
        return max((gap.size_bytes / MIB / seconds[gap.block] for gap in self._gaps), default=1.0)

    def _add_memory(self) -> None:
        for task, held in enumerate(self._held()):
            change = {variable: -value for variable, value in self._becomes_away[task].items()}
            before = {self._away + task - 1: -1.0} if task else {}
            self._equal.add(0.0, {self._away + task: 1.0} | before | change)
            terms = {self._away + task: -1.0, self._ahead + task: 1.0}
            self._rows.add(self._budget - held, terms)
            in_use = {variable: -value for variable, value in self._in_use[task].items()}
            self._rows.add(self._budget - held, terms | {self._leaving + task: 1.0} | in_use)

    def _add_seconds(self) -> None:
        """Add that the extra seconds, of each segment and of all, suffice for what is computed again in them."""
        everything: dict[int, float] = {}
        for terms in self._spent.values():
            everything |= terms
        extra = {self._extra + task: -1.0 for task in range(self._count)}
        self._rows.add(0.0, extra | everything)
        of_segment: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for task, segment in enumerate(self._segment):
            of_segment[segment][self._extra + task] = -1.0
        for segment, seconds in of_segment.items():
            self._rows.add(0.0, seconds | self._spent[segment])

    def _held(self) -> list[float]:
        """Return what each task holds if blocks stay in their gaps; blocks without a gap count only while they are used."""
        problem, graph = self._problem, self._problem.graph
        change = [0] * (self._count + 1)
        for gap in self._gaps:
            change[gap.last + 1] += gap.size_bytes
            change[gap.first] -= gap.size_bytes
        held, results, found = graph.external_bytes, 0, []
        for task in graph.tasks:
            held += change[task.index]
            touched = (graph.blocks[block] for block in problem.touched[task.index])
            used = sum(b.size_bytes for b in touched if not b.is_external and b.role not in RESULT_ROLES)
            results += graph.size_bytes(b for b in task.creates if graph.blocks[b].role in RESULT_ROLES)
            found.append((held + used + results + task.workspace_bytes) / MIB)
        return found
