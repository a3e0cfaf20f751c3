"""Gradients of clamped activations from their results, which a step keeps anyway.

    r = hardtanh(x, 0, 6)      hardtanh_backward(g, x, 0, 6)   ->   hardtanh_backward(g, r, 0, 6)

A result is at an edge exactly where the argument is at that edge or beyond it, so the gradient has the same bits. ReLU6
of MobileNets is such an activation; autograd keeps its argument, where it overwrites that as a copy
(``torch/csrc/autograd``, derivatives.yaml).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from membench.capture.passes import drop_unused
from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import numbered
from membench.core.graph.task_graph import Task, TaskGraph

_EDGES = (-1.0, 1.0)
"""Of ``aten.hardtanh``, unless given."""


def clamped_gradients_from_results(graph: TaskGraph, is_compiled: Callable[[Task], bool]) -> TaskGraph:
    """Return the graph in which gradients of ``hardtanh`` read its results, without the copies that nothing reads then.

    Args:
        is_compiled: for a gradient; other tasks read what they read before.
    """
    contents = _Contents(is_compiled)
    tasks = [contents.follow(task) for task in graph.tasks]
    if all(new is old for new, old in zip(tasks, graph.tasks, strict=True)):
        return graph
    return replace(graph, tasks=numbered(drop_unused(tasks, list(graph.blocks))))


@dataclass
class _Contents:
    """What blocks contain, as numbers equal for equal contents, and clamps' results by those of their arguments.

    Attributes:
        results: by an argument's layout and contents and the edges, the result and its contents.
    """

    is_compiled: Callable[[Task], bool]
    of_block: dict[int, int] = field(default_factory=dict)
    results: dict[tuple[object, ...], tuple[Value, int]] = field(default_factory=dict)
    unused: "count[int]" = field(default_factory=count)

    def follow(self, task: Task) -> Task:
        """Return the next task, which reads a result if it can."""
        call = task.call
        name = call.operator.split(".")[1] if call else ""
        if call and name == "hardtanh_backward" and self.is_compiled(task):
            return self._from_result(task, call)
        argument = call.args[0] if call and call.args else None
        before = self._of(argument) if isinstance(argument, Value) else None
        for block in task.writes:
            self.of_block[block] = next(self.unused)
        made = call.outputs[0] if call and call.outputs else None
        result = argument if name == "hardtanh_" else made
        if before is None or not isinstance(argument, Value) or not isinstance(result, Value):
            return task
        if name == "clone" and _layout(result) == _layout(argument):
            self.of_block[result.block] = before
        elif call and name in ("hardtanh", "hardtanh_"):
            edges = (*call.args[1:], *_EDGES[len(call.args) - 1 :])
            self.results[(_layout(argument), before, edges)] = result, self.of_block[result.block]
        return task

    def _from_result(self, task: Task, call: Call) -> Task:
        gradient, argument, *edges = call.args
        result, contents = self.results.get((_layout(argument), self._of(argument), tuple(edges)), (None, 0))
        for block in task.writes:
            self.of_block[block] = next(self.unused)
        if result is None or self._of(result) != contents or _layout(result) != _layout(argument):
            return task
        reads = dict.fromkeys(result.block if block == argument.block else block for block in task.reads)
        return replace(task, reads=tuple(reads), call=replace(call, args=(gradient, result, *edges)))

    def _of(self, value: Value) -> int:
        return self.of_block.setdefault(value.block, next(self.unused))


def _layout(value: Value) -> Value:
    return replace(value, block=-1)
