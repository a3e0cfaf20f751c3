"""Strategy: a memory-saving method, from a graph, a cost model and a budget to a schedule."""

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from membench.core.configuration import read_options
from membench.core.errors import UnsupportedStrategy, unknown
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.packages import added_folders
from membench.core.spelling import name_in
from membench.core.targets import find_target
from membench.planning.rewrites.micro_batch import GraphAt


class Strategy(ABC):
    """One memory-saving method: a concrete subclass in a file of this package, and a file in ``conf/strategy``."""

    name: ClassVar[str]
    """The name in configurations, records and tables."""
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.TRAINING})
    """The modes that it schedules; most methods manage what the forward pass keeps for the backward pass."""
    plans_for_budgets: ClassVar[bool] = True
    """Whether its schedule depends on the budget; otherwise one that exceeds it exceeds every smaller one, too."""
    searches_under_budget: ClassVar[bool] = False
    """Whether it plans for seconds under a budget; `membench.advise` takes plans without one for its largest batch."""

    runs_as_written: ClassVar[bool] = False
    """Whether it runs the program in its own order and with its own lifetimes, as plain PyTorch does."""
    layer_by_layer: bool | None = False
    """Whether a step in micro-batches is one graph, in the order of `planning.rewrites.layer_by_layer`.

    None: where weights are in host memory, the faster of both orders is taken.
    """
    moves_weights: bool = False
    """Whether it can keep unused weights, accumulated gradients and optimizer states in host memory."""

    def micro_batch_sizes(
        self, graph_at: GraphAt, batch_size: int, cost: CostModel, budget_bytes: int | None
    ) -> Iterable[int]:
        """Return micro-batch sizes in samples, to be tried in order until a schedule keeps the budget.

        Args:
            graph_at: the annotated graph at another batch size.
        """
        return (batch_size,)

    def scheduled(self, graph: TaskGraph) -> TaskGraph:
        """Return which of both graphs of a captured step it schedules.

        Raises:
            UnsupportedStrategy: it runs the program as written, and this is the graph of another framework.
        """
        written = graph if graph.is_plain or not self.runs_as_written else graph.plain
        if written is None:
            raise UnsupportedStrategy(
                f"strategy {self.name!r} is plain PyTorch's execution, and this graph is another framework's; choose "
                "framework=pytorch, or strategy=eager"
            )
        return written

    @abstractmethod
    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        """Return a schedule of the graph, or of a rewritten one with the same mathematics.

        Args:
            graph: annotated with the workspaces of `cost`.
            budget_bytes: the most that the step may hold on the device, the caller's blocks included; None: no limit.

        Raises:
            InfeasibleSchedule: the method cannot keep the budget.
            UnsupportedStrategy: the method cannot schedule such a graph.
        """


def strategies(mode: Mode = Mode.TRAINING) -> dict[str, type[Strategy]]:
    """Return every concrete strategy for a mode, by name: of this package, and of those that add to membench."""
    return {name: strategy for name, strategy in _all_strategies().items() if mode in strategy.modes}


def _all_strategies() -> dict[str, type[Strategy]]:
    """Return every concrete strategy.

    Raises:
        UnsupportedStrategy: a strategy has no name, or the name of another one.
        MembenchError: an added package's file names a class that is none; see `find_target`.
    """
    found: dict[str, type[Strategy]] = {}
    for item in (*_of_this_package(), *_of_added_packages()):
        name = getattr(item, "name", None)
        if name is None or found.setdefault(name, item) is not item:
            raise UnsupportedStrategy(f"{item.__module__}.{item.__name__} needs a name of its own, not {name!r}")
    return dict(sorted(found.items()))


def _of_this_package() -> Iterator[type[Strategy]]:
    package = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(package.__path__, f"{__package__}."):
        for item in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(item) and issubclass(item, Strategy) and not inspect.isabstract(item):
                yield item


def _of_added_packages() -> Iterator[type[Strategy]]:
    """Yield the classes that files of added packages name, in ``conf/strategy``."""
    for folder in added_folders("conf"):
        for path in sorted((folder / "strategy").glob("*.yaml")):
            made = find_target(read_options(path).get("_target_"), Strategy)
            if inspect.isclass(made) and issubclass(made, Strategy):
                yield made


def find_strategy(name: str) -> type[Strategy]:
    """Return the strategy of that name.

    Raises:
        UnsupportedStrategy: there is none; lists the known names.
    """
    known = _all_strategies()
    name = name_in("strategy", name, known)
    if name not in known:
        message = unknown("strategy", name, known)
        raise UnsupportedStrategy(message)
    return known[name]
