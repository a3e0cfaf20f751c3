"""Plans: choices, the order that follows from them, and the copies that keep a budget."""

from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import Any

import numpy as np

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.task_graph import TaskGraph
from membench.planning.choices.absences import find_absences
from membench.planning.choices.arrays import Operations, as_arrays
from membench.planning.choices.collectives import paced
from membench.planning.choices.loops import plan_copies, run_again
from membench.planning.choices.problem import OFFLOAD, RECOMPUTE, Choices, Problem
from membench.planning.rewrites.recompute import Order, RenamedTask

NO_LIMIT = 2**62
"""Bytes that nothing exceeds."""

ROUNDING = 1e-9
"""Of the sums of times, relative."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A block away from the device.

    Attributes:
        written: position of the task that wrote it; its copy to the host starts then. -1: none has, and the host has
            it.
        leaves: position before which it is freed; None: it has not been on the device.
        returns: position before which its copy back is issued.
        needed: position of its first use after.
    """

    block: int
    written: int
    leaves: int | None
    returns: int
    needed: int


@dataclass(frozen=True)
class EvaluatedChoices:
    """Evaluated choices.

    Attributes:
        step_s: seconds of the step; infinite where the budget cannot be kept, or it would be longer than was asked for.
        peak_bytes: the most that it holds.
    """

    problem: Problem
    choices: tuple[int, ...]
    program: Operations
    absences: Any
    leaves: Any
    returns: Any
    step_s: float
    peak_bytes: int

    def graph(self) -> TaskGraph:
        """Return the problem's graph, with the blocks on the device throughout that are to be there."""
        graph, unit_of, visitors = self.problem.graph, self.problem.unit_of, self.problem.visitors
        blocks = (
            replace(block, host_location=None)
            if block.host_location
            and block.index not in visitors
            and self.choices[unit_of.get(block.index, 0)] != OFFLOAD
            else block
            for block in graph.blocks
        )
        return replace(graph, blocks=tuple(blocks)) if any(b.host_location for b in graph.blocks) else graph

    def order(self) -> Order:
        """Return the order for `planning.rewrites.recompute.reordered`."""
        problem, graph = self.problem, self.problem.graph
        order, slots_at, slots, originals, _, _ = self.program
        tasks = []
        for position, operation in enumerate(order.tolist()):
            touched = slots[slots_at[position] : slots_at[position + 1]].tolist()
            pairs = zip(problem.touched[operation], touched, strict=True)
            copies = {block: slot for block, slot in pairs if block != slot}
            tasks.append(RenamedTask(problem.operations[operation], copies))
        return Order(tuple(tasks), (*graph.blocks, *(graph.blocks[block] for block in originals.tolist())))

    def gone(self) -> list[Absence]:
        """Return the absences in which the block leaves, in the order in which they are written."""
        rows = zip(self.absences.tolist(), self.leaves.tolist(), self.returns.tolist(), strict=True)
        found = [
            Absence(block, written, leaves if last >= 0 else None, returns, needed)
            for (block, written, last, needed), leaves, returns in rows
            if leaves >= 0
        ]
        return sorted(found, key=attrgetter("written"))


class Evaluator:
    """Evaluates choices of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._arrays = as_arrays(problem)
        self._programs: dict[bytes, Operations] = {}

    def plan(self, choices: Choices, budget_bytes: int, slowest_s: float = inf) -> EvaluatedChoices:
        """Return the plan of these choices in their order, infinitely long if longer than `slowest_s`."""
        program = self._program(np.array(choices, dtype=np.int64))
        return self.plan_of(program, choices, budget_bytes, slowest_s)

    def plan_of(
        self, program: Operations, choices: Choices, budget_bytes: int, slowest_s: float = inf
    ) -> EvaluatedChoices:
        """Return the plan of a program, in which units that `choices` offload leave, and others where memory lacks."""
        chosen = np.array(choices, dtype=np.int64)
        if not len(program.order):
            nothing = np.empty(0, np.int64)
            return EvaluatedChoices(self.problem, tuple(choices), program, nothing, nothing, nothing, inf, 0)
        absences, leaves, returns, step_s, peak = plan_copies(
            self._arrays, chosen, program, budget_bytes, slowest_s * (1 + ROUNDING)
        )
        return EvaluatedChoices(self.problem, tuple(choices), program, absences, leaves, returns, step_s, int(peak))

    def needed_bytes(self, choices: Choices) -> tuple[int, int]:
        """Return the least budget found that these choices can keep, and the operation that needs it."""
        chosen = np.array(choices, dtype=np.int64)
        program = self._program(chosen)
        low, high = self.problem.graph.lower_bound_bytes, NO_LIMIT
        tried, needing = 0, 0
        while low < high:
            held, _ = find_absences(self._arrays, chosen, program, tried)
            most = int(held.max(initial=0))
            if most <= tried or high == NO_LIMIT:
                high, needing = tried or most, int(held.argmax())
            else:
                low = tried + 1
            tried = (low + high) // 2
        return high, int(program.order[needing])

    def refusal(self, choices: Choices, budget_bytes: int) -> InfeasibleSchedule:
        """Return the error for a budget that these choices do not keep, with the least that they need."""
        needed_bytes, operation = self.needed_bytes(choices)
        return InfeasibleSchedule(
            task=self.problem.operations[operation].name,
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
            lower_bound_bytes=self.problem.graph.lower_bound_bytes,
        )

    def program_of(self, order: Order) -> Operations:
        """Return an order of the problem's operations, nested recomputation included, as a program."""
        problem = self.problem
        count = len(problem.graph.tasks)
        operations, slots, starts = [], list[int](), [0]
        for item in order.tasks:
            index = item.task.index
            # the name does not tell: a program that checkpoints runs tasks again by itself
            operation = index if problem.operations[index] is item.task else count + index
            assert problem.operations[operation] is item.task
            operations.append(operation)
            slots += (item.copies.get(block, block) for block in problem.touched[operation])
            starts.append(len(slots))
        originals = [block.index for block in order.blocks[len(problem.graph.blocks) :]]
        lists = (operations, starts, slots, originals)
        return paced(self._arrays, *(np.array(numbers, dtype=np.int64) for numbers in lists))

    def _program(self, chosen: Any) -> Operations:
        """Return the program, the last one where the choices recompute the same."""
        key = np.where(chosen >= RECOMPUTE, chosen, 0).tobytes()
        if key not in self._programs:
            self._programs = {key: run_again(self._arrays, chosen)}
        return self._programs[key]
