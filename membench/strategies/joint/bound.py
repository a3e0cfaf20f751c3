"""A lower bound on the time of a step within a budget: a linear program that every schedule of the class satisfies.

The class: schedules that run the graph's tasks in its order on one stream, each for the seconds of the cost model; run tasks
of the forward pass again at any time, as often as they like; copy blocks to the host and back at any time, as often as they
like, over a link that carries one block at a time in each direction; and hold results from when they are made to the end.

Relaxations, each of which only lowers the bound. A *gap* is the time between two uses of a block, and a fraction of it may be
kept, copied or recomputed. Copies are a fluid that flows whenever the link is free. A block whose copy returned last is
counted as away as soon as the fluid allows; one that was recomputed last, from its use on until the segment of the step in
which it is recomputed. Recomputation takes the seconds of the tasks that write the block, and neither memory nor their inputs.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from membench.core.task_graph import EXTERNAL_ROLES, RESULT_ROLES
from membench.strategies.joint.problem import Problem


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
    """

    step_s: float
    offloaded: dict[int, float]
    recomputed: dict[int, float]


def relax(problem: Problem, budget_bytes: int, segments: int = 3) -> Relaxation | None:
    """Solve the program; None where the solver proves that no schedule of the class keeps the budget."""
    return _Program(problem, budget_bytes, segments).solve()


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
    for block in graph.blocks:
        positions = uses[block.index]
        if block.role in EXTERNAL_ROLES | RESULT_ROLES or block.size_bytes < least_bytes:
            continue
        gaps = [(a, b) for a, b in pairwise(positions) if b > a + 1]
        longest = max(gaps, key=lambda gap: gap[1] - gap[0], default=None)
        unit = problem.unit_of.get(block.index, -1)
        for last, first in gaps:
            can_repeat = unit >= 0 and problem.units[unit].makers and last >= written[block.index]
            start = max(
                (p for p in positions if p <= last and block.index in graph.tasks[p].writes), default=last
            )
            yield Gap(
                block.index,
                block.size_bytes,
                last,
                first,
                start if (last, first) == longest else None,
                problem.units[unit].remake_s if can_repeat else None,
                unit,
            )


class _Program:
    def __init__(self, problem: Problem, budget_bytes: int, segments: int) -> None:
        self.problem = problem
        self.count = count = len(problem.graph.tasks)
        self.duration_s = problem.duration_s[:count]
        self.gaps = list(find_gaps(problem, problem.least_bytes))
        self.budget = float(budget_bytes)
        self.variables = 0
        self.rows = _Rows()
        self.equal = _Rows()
        self.segment = self._segments(segments)
        self.segment_end = {s: t + 1 for t, s in enumerate(self.segment)}
        self._build()

    def _segments(self, segments: int) -> list[int]:
        """Return the segment of each task: the forward pass is one, the backward pass has parts of equal time."""
        turn = self.problem.turn
        backward_s = sum(self.duration_s[turn:]) or 1.0
        found, passed_s = [0] * turn, 0.0
        for duration in self.duration_s[turn:]:
            found.append(1 + min(segments - 2, int(passed_s / backward_s * (segments - 1))))
            passed_s += duration
        return found

    def _new(self, count: int) -> int:
        self.variables += count
        return self.variables - count

    def _build(self) -> None:
        count, gaps, rows = self.count, self.gaps, self.rows
        unit_bytes = 1.0 / (1 << 20)
        out_rate = (
            max((g.size_bytes / self.problem.offload_s[g.block] for g in gaps), default=1.0) * unit_bytes
        )
        back_rate = (
            max((g.size_bytes / self.problem.prefetch_s[g.block] for g in gaps), default=1.0) * unit_bytes
        )
        extra, ended, leaving, ahead, before, away = (self._new(count) for _ in range(6))
        self.extra = extra
        enters: dict[int, dict[int, float]] = defaultdict(
            dict
        )  # task -> variable -> bytes that become absent
        out: dict[int, dict[int, float]] = defaultdict(dict)
        back: dict[int, dict[int, float]] = defaultdict(dict)
        in_use: dict[int, dict[int, float]] = defaultdict(dict)
        spent: dict[int, dict[int, float]] = defaultdict(dict)  # segment -> variable -> seconds
        costs: dict[tuple[int, int], int] = {}
        self.offload_of, self.recompute_of = {}, defaultdict(list)
        for number, gap in enumerate(gaps):
            size = gap.size_bytes * unit_bytes
            offload = self._new(1)
            self.offload_of[number] = offload
            choices = {offload: 1.0}
            enters[gap.last + 1][offload] = size
            enters[gap.first][offload] = -size
            back[gap.first][offload] = size
            if gap.written is not None:
                out[gap.written][offload] = size
                for position in range(gap.written + 1, gap.last + 1):
                    in_use[position][offload] = size
            if gap.remake_s is not None:
                for segment in range(self.segment[gap.last + 1], self.segment[gap.first] + 1):
                    variable = self._new(1)
                    self.recompute_of[number].append(variable)
                    choices[variable] = 1.0
                    enters[gap.last + 1][variable] = size
                    end = min(gap.first, self.segment_end[segment])
                    enters[end][variable] = enters[end].get(variable, 0.0) - size
                    key = (gap.unit, segment)
                    if key not in costs:
                        costs[key] = self._new(1)
                        spent[segment][costs[key]] = gap.remake_s
                    rows.add(0.0, {variable: 1.0, costs[key]: -1.0})
                both = self._new(1)  # recomputed, and copied later
                choices[both] = 1.0
                enters[gap.last + 1][both] = size
                enters[gap.first][both] = -size
                back[gap.first][both] = size
                spent[-1][both] = gap.remake_s
            rows.add(1.0, choices)
        held = self._held_bytes()
        for t in range(count):
            rows.add(out_rate * self.duration_s[t], {leaving + t: 1.0, ended + t: -1.0})
            rows.add(back_rate * self.duration_s[t], {ahead + t: 1.0, before + t: -1.0})
            if t + 1 < count:
                terms = {ended + t: 1.0, leaving + t + 1: -1.0, extra + t + 1: -out_rate}
                rows.add(0.0, terms | out[t])
                terms = {before + t + 1: 1.0, ahead + t: -1.0, extra + t + 1: -back_rate}
                rows.add(0.0, terms | back[t + 1])
            terms = {away + t: 1.0} | {variable: -value for variable, value in enters[t].items()}
            if t:
                terms[away + t - 1] = -1.0
            self.equal.add(0.0, terms)
            room = self.budget * unit_bytes - held[t] * unit_bytes
            rows.add(room, {away + t: -1.0, ahead + t: 1.0})
            terms = {away + t: -1.0, ahead + t: 1.0, leaving + t: 1.0}
            rows.add(room, terms | {variable: -value for variable, value in in_use[t].items()})
        everything = {variable: value for terms in spent.values() for variable, value in terms.items()}
        for segment in range(max(self.segment, default=0) + 1):
            tasks = {extra + t: -1.0 for t in range(count) if self.segment[t] == segment}
            rows.add(0.0, tasks | spent[segment])
        rows.add(0.0, {extra + t: -1.0 for t in range(count)} | everything)

    def _held_bytes(self) -> list[int]:
        """Return what each task holds if blocks stay in their gaps; blocks without a choice only while they are used."""
        problem, graph = self.problem, self.problem.graph
        change = [0] * (self.count + 1)
        for gap in self.gaps:
            change[gap.last + 1] += gap.size_bytes
            change[gap.first] -= gap.size_bytes
        results = 0
        held, found = graph.external_bytes, []
        for task in graph.tasks:
            held += change[task.index]
            touched = [graph.blocks[b] for b in problem.touched[task.index]]
            used = sum(b.size_bytes for b in touched if not b.is_external and b.role not in RESULT_ROLES)
            results += sum(
                graph.blocks[b].size_bytes for b in task.creates if graph.blocks[b].role in RESULT_ROLES
            )
            found.append(held + used + results + task.workspace_bytes)
        return found

    def solve(self) -> Relaxation | None:
        objective = np.zeros(self.variables)
        objective[self.extra : self.extra + self.count] = 1.0
        solution = linprog(
            objective,
            A_ub=self.rows.matrix(self.variables),
            b_ub=self.rows.limits,
            A_eq=self.equal.matrix(self.variables),
            b_eq=self.equal.limits,
            bounds=(0, None),
            method="highs",
        )
        if solution.status == 2:
            return None
        assert solution.status == 0, solution.message
        offloaded: dict[int, float] = {}
        recomputed: dict[int, float] = {}
        for number, gap in enumerate(self.gaps):
            if gap.unit >= 0 and gap.written is not None:
                offloaded[gap.unit] = max(offloaded.get(gap.unit, 0.0), solution.x[self.offload_of[number]])
                total = sum(solution.x[v] for v in self.recompute_of[number])
                recomputed[gap.unit] = max(recomputed.get(gap.unit, 0.0), total)
        return Relaxation(sum(self.duration_s) + solution.fun, offloaded, recomputed)
