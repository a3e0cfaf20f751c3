"""Checkmate's mixed-integer linear program over the stages of a graph."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from membench.planning.rewrites.recompute import Order
from membench.strategies.chain.replay import Replay
from membench.strategies.chain.stages import Chain

Terms = dict[int, float]
"""Coefficients by variable."""


@dataclass(frozen=True, slots=True)
class Value:
    """Units that one stage makes and the same stages read.

    Attributes:
        readers: later stages whose forward pass reads it; `epochs`: those whose backward pass does.
    """

    maker: int
    units: tuple[int, ...]
    size_bytes: int
    readers: frozenset[int]
    epochs: frozenset[int]


class IntegerProgram:
    """A graph's program; epoch e is the backward pass of the stage e from the end, epoch -1 the forward pass."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self._problem = chain, chain.problem
        self._count = len(chain.stages)
        self._values = self._find_values()
        self._unit_bytes = max(1, sum(value.size_bytes for value in self._values))
        self._columns = 0
        self._rows: list[tuple[Terms, float]] = []  # terms, and what they are at least
        epochs = range(self._count + 1)
        self._runs = [[self._new() for _ in range(self._count)] for _ in epochs]
        self._stays = [[self._new() for _ in self._values] for _ in epochs]
        self._binary = self._columns
        self._peak = self._new()
        self._forbidden: list[int] = []
        for epoch in range(self._count):
            self._add_epoch(epoch)
        for stage in range(self._count):
            self._hold_first(stage)

    def fastest(self, budget_bytes: int, time_limit_s: float) -> Order | None:
        """Return the fastest order within a budget; None where none was found."""
        room_bytes = budget_bytes - self._chain.fixed_bytes
        costs = np.zeros(self._columns)
        for runs in self._runs[: self._count]:
            costs[runs] = [stage.forward_s for stage in self._chain.stages]
        return self._solve(costs / costs.max(), room_bytes, time_limit_s) if room_bytes > 0 else None

    def smallest(self, time_limit_s: float) -> Order | None:
        """Return the order of least peak; None where none was found."""
        costs = np.zeros(self._columns)
        costs[self._peak] = 1
        return self._solve(costs, None, time_limit_s)

    # ---- the program --------------------------------------------------------------------------------

    def _find_values(self) -> list[Value]:
        problem, stages = self._problem, self._chain.stages
        readers: dict[int, set[int]] = defaultdict(set)
        epochs: dict[int, set[int]] = defaultdict(set)
        for number, stage in enumerate(stages):
            for found, tasks, key in (
                (readers, stage.forward, number),
                (epochs, stage.backward, self._count - 1 - number),
            ):
                for unit in {problem.unit_of.get(b, -1) for index in tasks for b in problem.graph.tasks[index].reads}:
                    found[unit].add(key)
        values = []
        for number, stage in enumerate(stages):
            alike: dict[Any, list[int]] = defaultdict(list)
            for unit in sorted(stage.units):
                later = frozenset(readers[unit] - {number})
                if later or epochs[unit]:
                    alike[later, frozenset(epochs[unit])].append(unit)
            for (later, read), units in alike.items():
                size_bytes = sum(problem.units[unit].size_bytes for unit in units)
                values.append(Value(number, tuple(units), size_bytes, later, read))
        return values

    def _new(self) -> int:
        self._columns += 1
        return self._columns - 1

    def _at_least(self, limit: float, terms: Terms) -> None:
        self._rows.append((terms, limit))

    def _add_epoch(self, epoch: int) -> None:
        """Add the rows of one epoch: dependencies, and what is held while each stage and the backward pass run."""
        runs, stays, later = self._runs[epoch], self._stays[epoch], self._stays[epoch + 1]
        last = self._count - 1 - epoch
        self._forbidden += runs[last + 1 :]
        for number, value in enumerate(self._values):
            self._at_least(0, {stays[number]: 1, runs[value.maker]: 1, later[number]: -1})
            if epoch in value.epochs:
                self._at_least(1, {stays[number]: 1, runs[value.maker]: 1})
            for reader in value.readers:
                self._at_least(0, {stays[number]: 1, runs[value.maker]: 1, runs[reader]: -1})
        for number in range(last + 1):
            self._hold_again(epoch, number)
        self._hold_backward(epoch)

    def _hold(self, size_bytes: float, terms: Terms) -> None:
        """Add the row that these bytes, and the terms' in bytes, are at most the peak."""
        scaled = {column: -value / self._unit_bytes for column, value in terms.items()}
        self._at_least(size_bytes / self._unit_bytes, scaled | {self._peak: 1})

    def _hold_first(self, number: int) -> None:
        """Hold what a stage needs when it first runs, what later stages read, and what the first epoch begins with."""
        before = [(n, value) for n, value in enumerate(self._values) if value.maker < number]
        held_bytes = sum(v.size_bytes for _, v in before if max(v.readers, default=-1) >= number)
        terms = {self._stays[0][n]: v.size_bytes for n, v in before if max(v.readers, default=-1) < number}
        self._hold(held_bytes + self._running_bytes(number), dict[int, float](terms))

    def _hold_again(self, epoch: int, number: int) -> None:
        """Hold what a stage needs when it runs in an epoch."""
        stays, later, runs = self._stays[epoch], self._stays[epoch + 1], self._runs[epoch]
        held_bytes = self._gradient_bytes(epoch)
        terms: Terms = {runs[number]: self._running_bytes(number)}
        for n, value in enumerate(self._values):
            following = [reader for reader in value.readers if reader >= number]
            if value.maker >= number:
                terms[stays[n]] = value.size_bytes
            elif epoch in value.epochs:
                held_bytes += value.size_bytes
            elif following:
                held = self._new()
                terms[held] = value.size_bytes
                for column in (later[n], *(runs[reader] for reader in following)):
                    self._at_least(0, {held: 1, column: -1})
            else:
                terms[later[n]] = value.size_bytes
        self._hold(held_bytes, terms)

    def _hold_backward(self, epoch: int) -> None:
        """Hold what a stage's backward pass needs, and what the next epoch begins with."""
        stage = self._chain.stages[self._count - 1 - epoch]
        held_bytes = stage.backward_bytes + self._result_bytes(epoch)
        terms: Terms = {}
        for n, value in enumerate(self._values):
            if epoch not in value.epochs:
                terms[self._stays[epoch + 1][n]] = value.size_bytes
            elif value.maker != self._count - 1 - epoch:
                held_bytes += value.size_bytes
        self._hold(held_bytes, terms)

    def _running_bytes(self, number: int) -> int:
        """Return the peak of a stage's forward pass with all its values."""
        units = {unit for value in self._values if value.maker == number for unit in value.units}
        blocks = frozenset(block for unit in units for block in self._problem.units[unit].blocks)
        return self._chain.forward_peak_bytes(list(self._chain.stages[number].forward), blocks)

    def _gradient_bytes(self, epoch: int) -> int:
        return self._chain.stages[self._count - 1 - epoch].gradient_bytes + self._result_bytes(epoch)

    def _result_bytes(self, epoch: int) -> int:
        return sum(stage.result_bytes for stage in self._chain.stages[self._count - epoch :])

    # ---- its solution -------------------------------------------------------------------------------

    def _solve(self, costs: Any, room_bytes: int | None, time_limit_s: float) -> Order | None:
        upper = np.ones(self._columns)
        upper[self._forbidden] = 0
        upper[self._peak] = np.inf if room_bytes is None else room_bytes / self._unit_bytes
        entries = [(row, column, value) for row, (terms, _) in enumerate(self._rows) for column, value in terms.items()]
        rows, columns, values = zip(*entries, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(self._rows), self._columns))
        found = milp(
            costs,
            integrality=np.arange(self._columns) < self._binary,
            bounds=Bounds(0, upper),
            constraints=LinearConstraint(matrix, [limit for _, limit in self._rows], np.inf),
            options={"time_limit": time_limit_s},
        )
        return None if found.x is None else self._order(found.x > 0.5)

    def _order(self, chosen: Any) -> Order:
        replay, stages = Replay(self._problem), self._chain.stages
        for stage in stages:
            for index in stage.forward:
                replay.run(index)
        replay.drop(self._gone(chosen, 0))
        for epoch in range(self._count):
            for number in np.flatnonzero(chosen[self._runs[epoch]]).tolist():
                replay.provide(self._wanted(chosen, epoch, number))
            for index in stages[self._count - 1 - epoch].backward:
                replay.run(index)
            replay.drop(self._gone(chosen, epoch + 1))
        return replay.finish()

    def _gone(self, chosen: Any, epoch: int) -> set[int]:
        """Return the units that are not in memory when an epoch begins."""
        stays = self._stays[epoch]
        staying = {unit for n, value in enumerate(self._values) if chosen[stays[n]] for unit in value.units}
        return {unit for stage in self._chain.stages for unit in stage.units} - staying

    def _wanted(self, chosen: Any, epoch: int, number: int) -> list[int]:
        """Return the blocks for which a stage runs in an epoch."""
        runs, later = self._runs[epoch], self._stays[epoch + 1]
        return [
            block
            for n, value in enumerate(self._values)
            if value.maker == number
            and (chosen[later[n]] or epoch in value.epochs or chosen[[runs[r] for r in value.readers]].any())
            for unit in value.units
            for block in self._problem.units[unit].blocks
        ]
