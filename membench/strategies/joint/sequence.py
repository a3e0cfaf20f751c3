"""The order of all operations under a choice: what is dropped runs again right before the backward pass needs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from membench.core.task_graph import RESULT_ROLES
from membench.planning.recompute import Order, RenamedTask
from membench.strategies.joint.problem import Choice, Problem

Choices = Sequence[Choice]
"""For each unit of a problem."""

_NOTHING: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """An operation of a problem, and the copies that it touches in place of the blocks that it names."""

    operation: int
    copies: Mapping[int, int]


class Program:
    """Operations in order, with the uses of blocks; copies have numbers behind those of the graph's blocks.

    Attributes:
        originals: of each copy the block of the graph.
        uses: for each block and copy the positions that touch it.
    """

    def __init__(self, problem: Problem, choices: Choices) -> None:
        self.problem = problem
        self.steps: list[Step] = []
        self.originals: list[int] = []
        self._dropped = {
            block: unit
            for number, unit in enumerate(problem.units)
            if choices[number] in (Choice.RECOMPUTE, Choice.REPEAT)
            for block in unit.blocks
        }
        self._repeated = {
            block for block, unit in self._dropped.items() if choices[problem.unit_of[block]] is Choice.REPEAT
        }
        self._copy: dict[int, int] = {}  # of dropped blocks that are there
        self._run()
        self.uses = self._find_uses()

    @property
    def order(self) -> Order:
        """The order for `planning.recompute.rewritten`."""
        operations, blocks = self.problem.operations, self.problem.graph.blocks
        tasks = (RenamedTask(operations[step.operation], step.copies) for step in self.steps)
        return Order(tuple(tasks), (*blocks, *(blocks[original] for original in self.originals)))

    def original(self, block: int) -> int:
        """Return the block of the graph of which a block is a copy, or itself."""
        count = len(self.problem.graph.blocks)
        return block if block < count else self.originals[block - count]

    def _run(self) -> None:
        problem, dropped = self.problem, self._dropped
        layer = -1
        for task in problem.graph.tasks:
            if task.index < problem.turn or not dropped:
                self.steps.append(Step(task.index, _NOTHING))
                continue
            if task.layer != layer:
                layer = task.layer
                for block in self._repeated:
                    self._copy.pop(block, None)
            wanted = [block for block in task.reads if block in dropped]
            self._make([block for block in wanted if block not in self._copy])
            self.steps.append(Step(task.index, {block: self._copy[block] for block in wanted} or _NOTHING))

    def _make(self, blocks: list[int]) -> None:
        """Run again what makes these blocks, and what makes the dropped inputs of that, in the graph's order."""
        makers: set[int] = set()
        made: set[int] = set()
        while blocks:
            unit = self._dropped[blocks.pop()]
            if not made.isdisjoint(unit.blocks):
                continue
            made.update(unit.blocks)
            makers.update(unit.makers)
            blocks += (block for block in unit.inputs if block in self._dropped and block not in self._copy)
        first_copy = len(self.problem.graph.blocks)
        extra: dict[int, int] = {}
        for index in sorted(makers):
            operation = self.problem.again[index]
            for block in self.problem.operations[operation].creates:
                self.originals.append(block)
                target = self._copy if block in self._dropped else extra
                target[block] = first_copy + len(self.originals) - 1
            touched = self.problem.touched[operation]
            copies = {
                b: extra[b] if b in extra else self._copy[b] for b in touched if b in extra or b in self._copy
            }
            self.steps.append(Step(operation, copies))

    def _find_uses(self) -> list[list[int]]:
        touched = self.problem.touched
        uses: list[list[int]] = [[] for _ in range(len(self.problem.graph.blocks) + len(self.originals))]
        for position, step in enumerate(self.steps):
            for block in touched[step.operation]:
                uses[step.copies.get(block, block)].append(position)
        return uses

    def held_bytes(self) -> list[int]:
        """Return the bytes that each step holds if nothing leaves the device; workspace included."""
        problem, graph = self.problem, self.problem.graph
        change = [0] * (len(self.steps) + 1)
        for block, positions in enumerate(self.uses):
            described = graph.blocks[self.original(block)]
            if positions and not described.is_external:
                change[positions[0]] += described.size_bytes
                if described.role not in RESULT_ROLES:
                    change[positions[-1] + 1] -= described.size_bytes
        held, found = graph.external_bytes, []
        for step, difference in zip(self.steps, change, strict=False):
            held += difference
            found.append(held + problem.operations[step.operation].workspace_bytes)
        return found
