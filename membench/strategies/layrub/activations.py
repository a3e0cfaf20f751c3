"""Outputs of layers, and the gradients that may take their place (Layrub, Sections 3.2 and 4.1)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from membench.core.graph.task_graph import Kind, Phase, Role, Task, TaskGraph


@dataclass(frozen=True)
class Activations:
    """The activations of a training step's graph.

    An activation is here what a layer of the forward pass makes and a later one reads; a layer in place makes none.
    """

    graph: TaskGraph

    @cached_property
    def readers(self) -> Mapping[int, int]:
        """Number of later layers of the forward pass that read each block."""
        return Counter(block for layer in self.graph.forward_layers for block in layer.reads - layer.writes)

    @cached_property
    def made(self) -> tuple[tuple[int, ...], ...]:
        """The activations of each layer of the forward pass, in order."""
        return tuple(
            tuple(sorted(block for block in layer.creates if self.readers[block]))
            for layer in self.graph.forward_layers
        )

    @cached_property
    def all(self) -> frozenset[int]:
        """All activations."""
        return frozenset(block for made in self.made for block in made)

    @cached_property
    def inputs(self) -> Mapping[int, tuple[int, ...]]:
        """What each layer of the forward pass reads and does not write, in order; the batch and weights left out."""
        return {
            layer.layer: tuple(
                dict.fromkeys(
                    block
                    for task in layer.tasks
                    for block in task.reads
                    if block in self.all and block not in layer.writes
                )
            )
            for layer in self.graph.forward_layers
        }

    @cached_property
    def of_gradients(self) -> Mapping[int, int]:
        """The activation of each gradient that is as large; of one with several readers that of the gradients' sum."""
        return self._of_gradients[0]

    @cached_property
    def of_parts(self) -> Mapping[int, int]:
        """The activation of each gradient that one of several readers leaves to be summed up."""
        return self._of_gradients[1]

    @cached_property
    def _of_gradients(self) -> tuple[dict[int, int], dict[int, int]]:
        blocks = self.graph.blocks
        whole: dict[int, int] = {}
        parts: dict[int, int] = {}
        for layer in self.graph.backward_layers:
            left = list(self.inputs.get(layer.layer, ()))
            for task in layer.tasks:
                for gradient in task.creates:
                    if blocks[gradient].role is not Role.GRADIENT:
                        continue
                    if summed := self._summed(task, parts):
                        whole[gradient] = parts[summed[0]]
                        continue
                    fitting = (b for b in left if blocks[b].size_bytes == blocks[gradient].size_bytes)
                    if (activation := next(fitting, None)) is not None:
                        left.remove(activation)
                        (parts if self.readers[activation] > 1 else whole)[gradient] = activation
        return whole, parts

    def _summed(self, task: Task, parts: Mapping[int, int]) -> list[int]:
        """Return the gradients of one activation that a task sums up."""
        if task.kind is not Kind.ADD or task.phase is not Phase.BACKWARD:
            return []
        summed = [block for block in task.reads if block in parts]
        return summed if len(summed) > 1 else []
