"""The graph of a step at any batch size, from captures at three: each number in it lies on a line through two of them.

Capture takes as long as most methods take to plan, and the search for the largest batch of each method needs dozens of
graphs. A third capture, of a batch far from the first two, has to be the graph that the line has there.
"""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

from membench.core.graph.task_graph import TaskGraph


class _NotOnALine(Exception):
    """Two graphs differ in more than numbers."""


@dataclass(frozen=True)
class ResizedGraph:
    """The graphs of a step at all batch sizes.

    Attributes:
        first: the graph at some batch size.
        second: at one sample more.
    """

    first: TaskGraph
    second: TaskGraph

    @classmethod
    def of(cls, graph_at: Callable[[int], TaskGraph], batch_size: int) -> "ResizedGraph | None":
        """Return the graphs through captures around a batch size; None where they differ in more than numbers.

        Args:
            graph_at: captures.

        Raises:
            UnsupportedModel: another batch cannot be captured.
        """
        start = max(2, batch_size)  # tensors of one sample have other strides
        resized = cls(graph_at(start), graph_at(start + 1))
        try:
            resized.at(start)
        except _NotOnALine:
            return None
        return resized

    def at(self, batch_size: int) -> TaskGraph:
        """Return the graph at a batch size."""
        graph: TaskGraph = _on_line(self.first, self.second, batch_size - self.first.batch_size)
        return graph

    def contains(self, graph: TaskGraph) -> bool:
        """Return whether a captured graph is the one of its batch size."""
        return self.at(graph.batch_size) == graph


def _on_line(first: Any, second: Any, more: int) -> Any:
    """Return a part of a graph with some samples more than the first of two that differ by one sample.

    Raises:
        _NotOnALine: they differ in more than numbers.
    """
    if first is second:
        return first
    kind = type(first)
    if kind is not type(second):
        raise _NotOnALine
    if kind is int:
        return first + more * (second - first)
    if kind in (tuple, list):
        if len(first) != len(second):
            raise _NotOnALine
        return kind([_on_line(a, b, more) for a, b in zip(first, second, strict=True)])
    if is_dataclass(first):
        names = first.__dataclass_fields__  # in the order of the constructor's arguments
        return kind(*(_on_line(getattr(first, name), getattr(second, name), more) for name in names))
    if first != second:
        raise _NotOnALine
    return first
