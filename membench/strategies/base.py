"""Strategy: a graph, a cost model and a budget go in, a schedule comes out."""

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from membench.core.cost_model import CostModel
from membench.core.errors import UnsupportedStrategy
from membench.core.schedule import Schedule
from membench.core.task_graph import Mode, TaskGraph
from membench.planning.micro_batch import GraphAt


class Strategy(ABC):
    """One memory-saving method.

    A new one is a file in this package with a concrete subclass, and a file in ``conf/strategy``.
    """

    name: ClassVar[str]
    """How configurations, records and tables call it."""
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.TRAINING})
    """What steps it schedules; most methods manage what the forward pass keeps for the backward pass."""

    def micro_batch_sizes(
        self, graph_at: GraphAt, batch_size: int, cost: CostModel, budget_bytes: int | None
    ) -> Iterable[int]:
        """Return how many samples to compute at a time: the first number whose schedule keeps the budget is taken.

        Args:
            graph_at: the graph at another batch size, with workspaces.
        """
        return (batch_size,)

    @abstractmethod
    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        """Return a program that computes the graph, or a rewritten one with the same mathematics.

        Raises:
            InfeasibleSchedule: the method cannot keep the budget.
            UnsupportedStrategy: the method cannot schedule such a graph.
        """


def strategies(mode: Mode = Mode.TRAINING) -> dict[str, type[Strategy]]:
    """Return every concrete strategy of this package that schedules such steps, by name."""
    return {name: strategy for name, strategy in _all_strategies().items() if mode in strategy.modes}


def _all_strategies() -> dict[str, type[Strategy]]:
    """Return every concrete strategy of this package.

    Raises:
        UnsupportedStrategy: one has no name, or that of another.
    """
    package = importlib.import_module(__package__ or "")
    found: dict[str, type[Strategy]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{__package__}."):
        for item in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(item) and issubclass(item, Strategy) and not inspect.isabstract(item):
                name = getattr(item, "name", None)
                if name is None or found.setdefault(name, item) is not item:
                    raise UnsupportedStrategy(
                        f"{item.__module__}.{item.__name__} needs a name of its own, not {name!r}"
                    )
    return dict(sorted(found.items()))


def find_strategy(name: str) -> type[Strategy]:
    """Return the strategy of that name.

    Raises:
        UnsupportedStrategy: there is none; lists those there are.
    """
    known = _all_strategies()
    if name not in known:
        raise UnsupportedStrategy(f"there is no strategy {name!r}; choose one of {', '.join(known)}")
    return known[name]
