"""Optimizers: what the update of the weights reads, writes and holds, by formula or as measured.

Facts of `torch.optim` 2.15 (``sgd.py``, ``adam.py``), which runs an update in one of three ways:

- foreach, its choice on a GPU: all weights of one dtype at once (``_multi_tensor_*``). Adam and AdamW hold one list of
  temporaries as large as these weights, the roots of the second moments; the list of an earlier dtype is held until the next
  one is made. SGD holds none, and one (gradients with the decay added) where it has a weight decay, which Adam frees
  before it makes the roots.
- for loop, its choice on the CPU (``_single_tensor_*``): one weight after another. Adam and AdamW hold two temporaries as
  large as the weight, the root and its quotient, and still the last weight's denominator.
- fused: one kernel for all weights, without temporaries.

The states have the weights' dtype. The number of steps is one element per weight, in host memory unless fused; it is not
counted. Adam's bias corrections are numbers of the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from math import prod

from membench.core.call import Value
from membench.core.checks import NAME, SWITCH, WHOLE, check, choice
from membench.core.task_graph import TaskGraph

SCALE_BYTES = 4
"""Of a block's scale in single precision."""


class Implementation(StrEnum):
    """The way in which an update runs over the weights."""

    FOREACH = "foreach"
    FOR_LOOP = "for_loop"
    FUSED = "fused"


class Gradients(StrEnum):
    """What happens to a weight's gradient after the update."""

    FREED = "freed"  # zero_grad(set_to_none=True): it does not exist in the next forward pass
    KEPT = "kept"  # zeroed in place: it exists throughout, and the backward pass adds to it


@dataclass(frozen=True, slots=True)
class UpdateTask:
    """A part of the update that runs at once.

    Attributes:
        weights: by name.
        operations: floating-point operations.
        moved_bytes: device memory read and written.
        workspace_bytes: peak of the temporaries.
    """

    weights: tuple[str, ...]
    operations: int = 0
    moved_bytes: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Update:
    """The update of one graph's weights.

    Attributes:
        tasks: in order.
        states: bytes of each state by its name, by the weight's name.
    """

    tasks: tuple[UpdateTask, ...]
    states: Mapping[str, Mapping[str, int]]
    gradients: Gradients = Gradients.FREED


UpdateOf = Callable[[TaskGraph], Update]
"""Returns the update of a graph's weights."""


@dataclass(frozen=True)
class Quantized:
    """States of one byte per element, with a scale in single precision for each block of elements.

    Attributes:
        block_elements: elements of a block.
        least_elements: states of smaller weights have single precision.
    """

    block_elements: int
    least_elements: int

    def size_bytes(self, elements: int) -> int:
        """Return the bytes of a state."""
        if elements < self.least_elements:
            return SCALE_BYTES * elements
        return elements + SCALE_BYTES * -(-elements // self.block_elements)


@dataclass(frozen=True)
class UpdateRule:
    """An optimizer whose update is simulated by formula.

    Attributes:
        name: in configurations and tables.
        states: names of its states, each as large as its weight.
        operations: floating-point operations per element.
        passes: tensors as large as a weight that its operators read and write, by foreach or in a loop.
        temporaries: such tensors that it holds at once, by implementation; missing: none.
        quantized: how its states are stored; None: as the weight is.
        implementation: None: torch's choice on a GPU, foreach.
        gradients: freed or kept after the update.
        l2_penalty: a weight decay that is added to the gradient, as `torch.optim.SGD` and Adam do (AdamW does not).

    Raises:
        MembenchError: a value is not allowed.
    """

    name: str
    states: Sequence[str] = ()
    operations: int = 0
    passes: int = 0
    temporaries: Mapping[str, int] = field(default_factory=dict)
    quantized: Quantized | None = None
    implementation: Implementation | None = None
    gradients: Gradients = Gradients.FREED
    l2_penalty: bool = False

    def __post_init__(self) -> None:
        check(NAME, name=self.name)
        check(WHOLE, operations=self.operations, passes=self.passes)
        check(WHOLE, **{f"temporaries.{key}": value for key, value in self.temporaries.items()})
        check(SWITCH, l2_penalty=self.l2_penalty)
        for key in self.temporaries:
            choice(Implementation, "temporaries", key)
        if self.implementation is not None:
            choice(Implementation, "implementation", self.implementation)
        choice(Gradients, "gradients", self.gradients)

    def __call__(self, graph: TaskGraph) -> Update:
        """Return the update of a graph's weights."""
        gradients = {name: value for name, value in graph.gradients if value is not None}
        states = {name: dict.fromkeys(self.states, self._state_bytes(v)) for name, v in gradients.items()}
        return Update(tuple(self._tasks(gradients, states)), states, Gradients(self.gradients))

    def _tasks(
        self, gradients: Mapping[str, Value], states: Mapping[str, Mapping[str, int]]
    ) -> Iterator[UpdateTask]:
        """Yield a task for each weight in a loop, otherwise for each dtype."""
        runs = Implementation(self.implementation or Implementation.FOREACH)
        if runs is Implementation.FOR_LOOP:
            groups = [[name] for name in gradients]
        else:
            by_dtype = sorted(gradients, key=lambda name: str(gradients[name].dtype))
            groups = [list(group) for _, group in groupby(by_dtype, lambda name: gradients[name].dtype)]
        held = self.temporaries.get(runs, 0)
        earlier_bytes = 0  # what a variable still holds of the group before
        for names in groups:
            elements = sum(prod(gradients[name].shape) for name in names)
            weights_bytes = sum(_bytes(gradients[name]) for name in names)
            state_bytes = sum(sum(states[name].values()) for name in names)
            yield UpdateTask(
                tuple(names),
                operations=self.operations * elements,
                moved_bytes=self._moved_bytes(runs, weights_bytes, state_bytes),
                workspace_bytes=self._temporaries(runs) * weights_bytes + earlier_bytes,
            )
            earlier_bytes = weights_bytes if held else 0

    def _temporaries(self, runs: Implementation) -> int:
        """Return how many tensors as large as its weights a task holds at once."""
        held = self.temporaries.get(runs, 0)
        if not self.l2_penalty or runs is Implementation.FUSED:
            return held
        return held + 1 if runs is Implementation.FOR_LOOP else max(held, 1)

    def _moved_bytes(self, runs: Implementation, weights_bytes: int, state_bytes: int) -> int:
        """Return the bytes of all passes; one fused kernel reads the gradient, and reads and writes weight and states."""
        zeroed_bytes = weights_bytes if self.gradients == Gradients.KEPT else 0
        if runs is Implementation.FUSED or self.quantized:
            return 3 * weights_bytes + 2 * state_bytes + zeroed_bytes
        return (self.passes + 3 * self.l2_penalty) * weights_bytes + zeroed_bytes

    def _state_bytes(self, weight: Value) -> int:
        return self.quantized.size_bytes(prod(weight.shape)) if self.quantized else _bytes(weight)


def _bytes(value: Value) -> int:
    return prod(value.shape) * value.dtype.itemsize
