"""The task graph: blocks of device memory, and the tasks that read and write them.

A graph says what has to be computed, not when memory is held: that is the schedule's business.
All nouns are frozen records without behaviour that acts, so they compare, print and pickle.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any

from membench.core.call import Call, Value, map_values
from membench.core.convolution import Convolution


class Role(StrEnum):
    """What a block holds."""

    INPUT = "input"
    LABEL = "label"
    WEIGHT = "weight"
    BUFFER = "buffer"  # running statistics and other state of the module
    CONSTANT = "constant"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    ENCODED = "encoded"  # form of an activation
    INTERNAL = "internal"  # what a framework's layer holds inside, beside its output
    GRADIENT = "gradient"  # of an activation
    WEIGHT_GRADIENT = "weight gradient"
    PARTIAL_GRADIENT = "partial weight gradient"  # of one use of a shared weight, until added to the others
    ACCUMULATED = "accumulated"  # gradients and loss, over the micro-batches of a step
    LOSS = "loss"
    OUTPUT = "output"  # of the module, where the step is one of inference


EXTERNAL_ROLES = frozenset(
    {
        Role.INPUT,
        Role.LABEL,
        Role.WEIGHT,
        Role.BUFFER,
        Role.CONSTANT,
        Role.OPTIMIZER_STATE,
        Role.ACCUMULATED,
    }
)
"""Blocks that belong to the caller and live before, during and after the step: on the device, or at home on the host."""

ARGUMENT_ROLES = frozenset({Role.INPUT, Role.LABEL})
"""Blocks that the caller hands over anew in each step."""

RESULT_ROLES = frozenset({Role.LOSS, Role.WEIGHT_GRADIENT, Role.OUTPUT})
"""Blocks that a step hands to its caller."""


WEIGHT_GRADIENT_ROLES = frozenset({Role.WEIGHT_GRADIENT, Role.PARTIAL_GRADIENT})


class Phase(StrEnum):
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"


class Mode(StrEnum):
    """What a step is for."""

    TRAINING = "training"
    INFERENCE = "inference"  # the forward pass alone; its result is the module's output


class Kind(StrEnum):
    """What a task computes, as the papers distinguish layers."""

    CONVOLUTION = "convolution"
    LINEAR = "linear"
    BATCH_NORM = "batch norm"
    SCALE = "scale"
    NORMALIZATION = "normalization"
    RELU = "relu"
    ACTIVATION = "activation"
    POOLING = "pooling"
    DROPOUT = "dropout"
    ATTENTION = "attention"
    ADD = "add"
    CONCATENATE = "concatenate"
    LOSS = "loss"
    OTHER = "other"


class GradientOf(StrEnum):
    """Which half of a layer's backward pass a task is (Layrub 3.1, moDNN's BP2 and BP1)."""

    WEIGHT = "weight"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class HostLocation:
    """Where in host memory a block lies before the step: in the caller's tensor of `block`, from `offset_bytes` on."""

    block: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """One storage of device memory; views share it and in-place operators write to it.

    Attributes:
        home: for a block of the caller's that lives on the host and visits the device: a prefetch brings it, and it is
            freed without a copy back, unless the step has written it. None: as its role says, on the device all the time or made there.
    """

    index: int
    name: str
    size_bytes: int
    role: Role
    layer: int
    home: HostLocation | None = None

    @property
    def is_part(self) -> bool:
        """Whether it is a share of another block of the caller's."""
        return self.home is not None and self.home.block != self.index

    @property
    def is_external(self) -> bool:
        """Whether it is on the device before, during and after the step."""
        return self.role in EXTERNAL_ROLES and self.home is None

    @property
    def is_transient(self) -> bool:
        """Whether it is created and freed within the step, unlike the caller's blocks and the results."""
        return not self.is_external and self.role not in RESULT_ROLES


@dataclass(frozen=True, slots=True)
class Task:
    """One operator call.

    Attributes:
        reads: blocks whose contents it needs, those that it updates in place included.
        writes: blocks that it fills or updates.
        creates: those of `writes` that did not exist before.
        operations: floating-point operations (a multiplication and an addition count as two).
        moved_bytes: device memory read and written.
        workspace_bytes: what the operator holds beyond its outputs at its own worst moment.
        random: draws from the generator, so it must run exactly once per step.
        convolution: its geometry, where it is a two-dimensional convolution or one of its gradients.
        algorithm: which of the cost model's algorithms it runs with; empty: the default.
        call: None in a graph that only a simulator can run.
    """

    index: int
    name: str
    kind: Kind
    phase: Phase
    layer: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    creates: tuple[int, ...]
    operations: int = 0
    moved_bytes: int = 0
    workspace_bytes: int = 0
    gradient_of: GradientOf | None = None
    random: bool = False
    convolution: Convolution | None = None
    algorithm: str = ""
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class LayerTasks:
    """A run of consecutive tasks of one layer and phase: the unit in which vDNN and Layrub decide."""

    layer: int
    phase: Phase
    tasks: tuple[Task, ...]

    @property
    def reads(self) -> frozenset[int]:
        return frozenset(block for task in self.tasks for block in task.reads)

    @property
    def writes(self) -> frozenset[int]:
        return frozenset(block for task in self.tasks for block in task.writes)

    @property
    def creates(self) -> frozenset[int]:
        return frozenset(block for task in self.tasks for block in task.creates)

    @property
    def touches(self) -> frozenset[int]:
        return self.reads | self.writes

    def has_kind(self, *kinds: Kind) -> bool:
        """Return whether one of the tasks is of one of these kinds."""
        return any(task.kind in kinds for task in self.tasks)


@dataclass(frozen=True)
class TaskGraph:
    """A step of training or of inference of one model at one batch size.

    Attributes:
        blocks: by index.
        tasks: in an order in which they can run; ``tasks[i].index == i``.
        layers: names, by the index that blocks and tasks carry.
        loss: None in a step of inference.
        gradients: the `Value` of each trained weight's gradient, by the weight's name (None: unused). In a micro-batch it
            is what the gradients of all micro-batches are added to.
        output: what the module returns in a step of inference, with `Value` in place of tensors.
        overhead_bytes: what the framework holds beside the blocks (context, library handles).
    """

    name: str
    batch_size: int
    blocks: tuple[Block, ...]
    tasks: tuple[Task, ...]
    layers: tuple[str, ...]
    loss: Value | None = None
    gradients: tuple[tuple[str, Value | None], ...] = ()
    output: Any = None
    overhead_bytes: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key in self.__dataclass_fields__}

    @property
    def mode(self) -> Mode:
        return Mode.TRAINING if self.output is None else Mode.INFERENCE

    def size_bytes(self, blocks: Iterable[int]) -> int:
        """Return the bytes of some blocks together."""
        return sum(self.blocks[block].size_bytes for block in blocks)

    @cached_property
    def external_bytes(self) -> int:
        """Bytes of the caller's blocks on the device (weights, buffers, inputs ...) and of the framework's overhead."""
        held = sum(block.size_bytes for block in self.blocks if block.is_external)
        return held + self.overhead_bytes

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of the blocks that the step hands to its caller."""
        return sum(block.size_bytes for block in self.blocks if block.role in RESULT_ROLES)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """For each block the index of the last task that touches it, or -1."""
        last = [-1] * len(self.blocks)
        for task in self.tasks:
            for block in (*task.reads, *task.writes):
                last[block] = task.index
        return tuple(last)

    @cached_property
    def needed_bytes(self) -> tuple[int, ...]:
        """For each task what any schedule must hold while it runs: the caller's blocks, its own and its workspace."""
        internal = [0 if block.is_external else block.size_bytes for block in self.blocks]
        return tuple(
            self.external_bytes + sum(internal[b] for b in {*task.reads, *task.writes}) + task.workspace_bytes
            for task in self.tasks
        )

    @cached_property
    def lower_bound_bytes(self) -> int:
        """What any schedule must hold: the caller's blocks and the neediest task's (moDNN, Equation 7)."""
        return max(self.needed_bytes, default=self.external_bytes)

    @cached_property
    def largest_workspace_bytes(self) -> int:
        """The most that one task holds beside its blocks."""
        return max((task.workspace_bytes for task in self.tasks), default=0)

    @cached_property
    def forward_layers(self) -> tuple[LayerTasks, ...]:
        """Runs of the forward pass and the loss, in order."""
        return tuple(run for run in self._runs() if run.phase is not Phase.BACKWARD)

    @cached_property
    def backward_layers(self) -> tuple[LayerTasks, ...]:
        return tuple(run for run in self._runs() if run.phase is Phase.BACKWARD)

    def _runs(self) -> Iterator[LayerTasks]:
        for (layer, backward), run in groupby(self.tasks, lambda t: (t.layer, t.phase is Phase.BACKWARD)):
            tasks = tuple(run)
            yield LayerTasks(layer, Phase.BACKWARD if backward else tasks[0].phase, tasks)


def rename_blocks(task: Task, renamed: Mapping[int, int]) -> Task:
    """Return the task with blocks replaced, in its call as well."""

    def of(block: int) -> int:
        return renamed.get(block, block)

    def value(item: Value) -> Value:
        return replace(item, block=of(item.block))

    if renamed.keys().isdisjoint((*task.reads, *task.writes)):
        return task
    call = task.call
    if call is not None:
        parts = (call.args, call.kwargs, call.outputs)
        call = Call(call.operator, *(map_values(part, value) for part in parts))
    return replace(
        task,
        reads=tuple(dict.fromkeys(of(b) for b in task.reads)),
        writes=tuple(dict.fromkeys(of(b) for b in task.writes)),
        creates=tuple(of(b) for b in task.creates),
        call=call,
    )
