"""The task graph: blocks of device memory, and the tasks that read and write them.

A graph contains the computation, not when memory is held: that is part of the schedule.
All nouns are frozen records without side effects, so they compare, print and pickle.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.call import Call, Value
from membench.core.graph.collective import Collective
from membench.core.graph.convolution import Convolution
from membench.core.graph.precision import Precision
from membench.core.libraries.torch_internals import tree_leaves


class Role(StrEnum):
    """The contents of a block."""

    INPUT = "input"
    LABEL = "label"
    WEIGHT = "weight"
    BUFFER = "buffer"  # running statistics and other state of the module
    CONSTANT = "constant"
    GIVEN_UP = "given up"  # passed in an object of the caller's, in which the step puts another tensor in its place
    GATHERED = "gathered weight"  # of all ranks' shards, with the buffers of gathering it
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    ENCODED = "encoded"  # form of an activation
    INTERNAL = "internal"  # memory that a framework's layer holds in addition to its output
    GRADIENT = "gradient"  # of an activation
    WEIGHT_GRADIENT = "weight gradient"
    APPLIED_GRADIENT = "applied weight gradient"  # freed after the update, so not a result of the step
    PENDING_GRADIENT = "pending weight gradient"  # at home in host memory until the next step's deferred update
    PARTIAL_GRADIENT = "partial weight gradient"  # of one use of a shared weight, until added to the others
    ACCUMULATED = "accumulated"  # gradients and loss, over the micro-batches of a step
    LOSS = "loss"
    OUTPUT = "output"  # of the module, or the gradient of an input
    HELD = "held"  # by the program, until what the next step or micro-batch makes takes its place
    OUTPUT_GRADIENT = "output gradient"  # passed by the caller at the turn, and held until the step ends


ARGUMENT_ROLES = frozenset({Role.INPUT, Role.LABEL})
"""Blocks that the caller passes in each step."""

STATE_ROLES = frozenset({Role.WEIGHT, Role.ACCUMULATED, Role.PENDING_GRADIENT, Role.OPTIMIZER_STATE})
"""The caller's blocks that training changes from step to step, and that can have their home in host memory."""

EXTERNAL_ROLES = ARGUMENT_ROLES | STATE_ROLES | {Role.BUFFER, Role.CONSTANT}
"""Blocks that the caller owns and that live before, during and after the step: on the device or in host memory."""

RESULT_ROLES = frozenset({Role.LOSS, Role.WEIGHT_GRADIENT, Role.OUTPUT, Role.OUTPUT_GRADIENT})
"""Blocks that the caller holds at the step's end: what it returns, and gradients that its outputs received."""

TAKEN_GRADIENT_ROLES = frozenset({Role.APPLIED_GRADIENT, Role.PENDING_GRADIENT})
"""Gradients that the update takes, so that the caller does not get them."""

WEIGHT_GRADIENT_ROLES = frozenset({Role.WEIGHT_GRADIENT, Role.PARTIAL_GRADIENT})


class Phase(StrEnum):
    """The part of a step to which a task belongs."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"  # of the weights, by the optimizer


AFTER_THE_LOSS = frozenset({Phase.BACKWARD, Phase.UPDATE})
"""The phases whose tasks run once, in `TaskGraph.backward_layers`."""


RECOMPUTED_SUFFIX = " again"
"""Ends the names of recomputed tasks and of the blocks that they fill."""


class Mode(StrEnum):
    """The purpose of a step."""

    TRAINING = "training"
    INFERENCE = "inference"  # only the forward pass; its result is the module's output


class Kind(StrEnum):
    """The computation of a task, in the categories of layers that the papers distinguish."""

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
    """The part of a layer's backward pass to which a task belongs (Layrub 3.1 and 4.3, moDNN's BP2 and BP1).

    `BIAS` where a framework has a kernel of its own for it; otherwise `WEIGHT` includes it.
    """

    BIAS = "bias"
    WEIGHT = "weight"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class HostLocation:
    """Location of a block outside the device before the step: in the caller's tensor `block`, from `offset_bytes` on.

    Attributes:
        on_disk: that tensor's contents are on the disk, and it has no memory.
    """

    block: int
    offset_bytes: int = 0
    on_disk: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """One storage of device memory; views share it and in-place operators write to it.

    Attributes:
        host_location: its home, of an external block that is kept in host memory or on the disk: a prefetch brings it
            from host memory to the device, and it is freed without a copy back unless the step has written it. None: by
            its role, the block is on the device throughout or is made there.
        repeats: an earlier block with the same contents, which is given back before this one is made; None: there is
            none.
        pool: a pool of PyTorch's caching allocator, which has one for each stream that makes tensors; empty: the
            compute stream's.
    """

    index: int
    name: str
    size_bytes: int
    role: Role
    layer: int
    host_location: HostLocation | None = None
    repeats: int | None = None
    pool: str = ""

    @property
    def is_part(self) -> bool:
        """Whether it is a part of another external block."""
        return self.host_location is not None and self.host_location.block != self.index

    @property
    def is_on_disk(self) -> bool:
        """Whether its home is the disk."""
        return self.host_location is not None and self.host_location.on_disk

    @property
    def is_external(self) -> bool:
        """Whether it is on the device before, during and after the step."""
        return self.role in EXTERNAL_ROLES and self.host_location is None

    @property
    def is_transient(self) -> bool:
        """Whether it is created and freed within the step, unlike external blocks and results."""
        return not self.is_external and self.role not in RESULT_ROLES


@dataclass(frozen=True, slots=True)
class Task:
    """One operator call.

    Attributes:
        reads: blocks whose contents it needs, including those that it updates in place.
        writes: blocks that it fills or updates.
        creates: those of `writes` that did not exist before.
        operations: floating-point operations (a multiplication and an addition count as two).
        moved_bytes: device memory read and written.
        host_bytes: host memory that its kernels read and write over the link.
        cpu_moved_bytes: host memory that it reads and writes if it runs on the host's processor; of an update alone.
        workspace_bytes: the peak of the operator's memory in addition to its inputs and outputs.
        launches: kernels that it starts.
        random: draws from the generator, so it must run exactly once per step.
        precision: format of the factors of its products, or of its elements: one of `Precision` but those of autocast.
        convolution: geometry of a two-dimensional convolution or of one of its gradients; None for other tasks.
        algorithm: name of the cost model's algorithm that runs it; empty: the default.
        releases: blocks whose memory plain PyTorch gives back after it; empty unless `TaskGraph.is_plain`.
        is_compiled: code that `torch.compile` has made starts it.
        on_host: runs on the processor, on copies in host memory of the blocks that it reads and writes; it creates
            none, and its workspace is host memory, which is not counted.
        collective: the exchange with other ranks that it is; None: it computes.
        call: None in a graph that only a simulator can run, and of the update, which torch's optimizer runs.
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
    host_bytes: int = 0
    cpu_moved_bytes: int = 0
    workspace_bytes: int = 0
    launches: int = 1
    gradient_of: GradientOf | None = None
    random: bool = False
    precision: Precision = Precision.FP32
    convolution: Convolution | None = None
    algorithm: str = ""
    releases: tuple[int, ...] = ()
    is_compiled: bool = False
    on_host: bool = False
    collective: Collective | None = None
    call: Call | None = None

    @property
    def is_recomputed(self) -> bool:
        """Whether it runs a task of the forward pass again."""
        return self.name.endswith(RECOMPUTED_SUFFIX)


@dataclass(frozen=True)
class LayerTasks:
    """Consecutive tasks of one layer and phase: the unit of decisions in vDNN and Layrub."""

    layer: int
    phase: Phase
    tasks: tuple[Task, ...]

    @cached_property
    def reads(self) -> frozenset[int]:
        return frozenset(block for task in self.tasks for block in task.reads)

    @cached_property
    def writes(self) -> frozenset[int]:
        return frozenset(block for task in self.tasks for block in task.writes)

    @cached_property
    def creates(self) -> frozenset[int]:
        return frozenset(block for task in self.tasks for block in task.creates)

    @cached_property
    def touches(self) -> frozenset[int]:
        return self.reads | self.writes

    def has_kind(self, *kinds: Kind) -> bool:
        """Return whether one of the tasks is of one of these kinds."""
        return any(task.kind in kinds for task in self.tasks)


@dataclass(frozen=True)
class TaskGraph:
    """A step of training or inference of one model at one batch size.

    Attributes:
        blocks: by index.
        tasks: in an order in which they can run; ``tasks[i].index == i``.
        layers: names, by the index that blocks and tasks carry.
        loss: None in a step of inference.
        gradients: the `Value` of each trained weight's gradient, by the weight's name (None: unused). In a micro-batch
            these are the accumulators, to which the gradients of all micro-batches are added.
        completed: the weights by name in the order in which autograd completes their gradients.
        output: what the module returns, with `Value` in place of tensors; None in a step that returns a loss.
        objects_after: if a step of inference changes objects among its inputs, such as a cache of keys and values: all
            of them as it leaves them, each an `Opened` with `Value` in place of tensors.
        weights_stay: weights are on the device throughout, because others than the step use them there.
        depends_on_values: sizes depend on values: the graph is of the batch that it was captured with.
        output_gradients: an output and its gradient, for each that has one, in a step of training whose loss is
            computed by the caller. Between the output and these is the turn from the forward to the backward pass.
        input_gradients: in such a step the gradient of each tensor of the inputs; None where none is asked for.
        parts: in a step whose micro-batches are blocks of their own: for each of the caller's arguments the block of
            each micro-batch's part of it, in their order.
        overhead_bytes: memory that the framework holds in addition to the blocks (context, library handles).
        plain: the step as plain PyTorch runs it; None in that graph itself and in another framework's.
        is_plain: whether it is such a step, with tasks whose results are not used and with `Task.releases`.
    """

    name: str
    batch_size: int
    blocks: tuple[Block, ...]
    tasks: tuple[Task, ...]
    layers: tuple[str, ...]
    loss: Value | None = None
    gradients: tuple[tuple[str, Value | None], ...] = ()
    completed: tuple[str, ...] = ()
    output: Any = None
    objects_after: tuple[Any, ...] = ()
    weights_stay: bool = False
    depends_on_values: bool = False
    output_gradients: tuple[tuple[Value, Value], ...] = ()
    input_gradients: tuple[Value | None, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    overhead_bytes: int = 0
    plain: "TaskGraph | None" = None
    is_plain: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key in self.__dataclass_fields__}

    def map(self, change: Callable[["TaskGraph"], "TaskGraph"]) -> "TaskGraph":
        """Return the graph changed, and `plain` in the same way."""
        return replace(change(self), plain=self.plain and change(self.plain))

    @cached_property
    def given_up(self) -> frozenset[int]:
        """Blocks that the step takes over from the caller, by its first task."""
        return frozenset(block.index for block in self.blocks if block.role is Role.GIVEN_UP)

    @property
    def micro_batch_size(self) -> int:
        """Samples that its tasks compute at a time."""
        return self.batch_size // (len(self.parts[0]) if self.parts else 1)

    @property
    def mode(self) -> Mode:
        return Mode.TRAINING if self.output is None or self.output_gradients else Mode.INFERENCE

    @cached_property
    def turn(self) -> int | None:
        """The task in whose place the caller passes the outputs' gradients; None where the step computes its loss."""
        passed = {gradient.block for _, gradient in self.output_gradients}
        return next((task.index for task in self.tasks if passed.intersection(task.creates)), None)

    def size_bytes(self, blocks: Iterable[int]) -> int:
        """Return the bytes of some blocks together."""
        return sum(self.blocks[block].size_bytes for block in blocks)

    @cached_property
    def external_bytes(self) -> int:
        """Bytes of the external blocks on the device (weights, buffers, inputs ...) and of the framework's overhead."""
        return self.overhead_bytes + sum(block.size_bytes for block in self.blocks if block.is_external)

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of the blocks that the step returns to its caller."""
        return sum(block.size_bytes for block in self.blocks if block.role in RESULT_ROLES)

    @cached_property
    def returned(self) -> frozenset[int]:
        """Blocks of the values that the step returns: loss, outputs, objects, and gradients that no update takes."""
        gradients = [value for _, value in self.gradients]
        leaves = tree_leaves((self.loss, self.output, self.objects_after, gradients, self.input_gradients))
        blocks = {value.block for value in leaves if isinstance(value, Value)}
        return frozenset(block for block in blocks if self.blocks[block].role not in TAKEN_GRADIENT_ROLES)

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
        """Bytes that any schedule holds while each task runs: external blocks, the task's blocks and its workspace."""
        internal = [0 if block.is_external else block.size_bytes for block in self.blocks]
        touched = (() if task.on_host else {*task.reads, *task.writes} for task in self.tasks)
        return tuple(
            self.external_bytes + sum(internal[block] for block in blocks) + task.workspace_bytes
            for task, blocks in zip(self.tasks, touched, strict=True)
        )

    @cached_property
    def lower_bound_bytes(self) -> int:
        """The least peak of any schedule: the largest of `needed_bytes` (moDNN, Equation 7)."""
        return max(self.needed_bytes, default=self.external_bytes)

    @cached_property
    def largest_workspace_bytes(self) -> int:
        """The largest workspace of a task."""
        return max((task.workspace_bytes for task in self.tasks), default=0)

    @cached_property
    def forward_layers(self) -> tuple[LayerTasks, ...]:
        """Layers of the forward pass and the loss, in order."""
        return self._layers(backward=False)

    @cached_property
    def backward_layers(self) -> tuple[LayerTasks, ...]:
        """Layers of the backward pass, in order, and behind them those of the update."""
        return self._layers(backward=True)

    def _layers(self, *, backward: bool) -> tuple[LayerTasks, ...]:
        passes = [task.phase in AFTER_THE_LOSS for task in self.tasks]
        if passes != sorted(passes):
            raise UnsupportedStrategy(
                f"{self.name}: forward and backward passes of micro-batches alternate, and a method by layers, such as "
                "Layrub, plans one pass after the other; use pipeline=GPipe, or a method by tasks, such as joint"
            )
        by_layer = groupby(self.tasks, lambda task: (task.layer, task.phase in AFTER_THE_LOSS))
        groups = ((layer, tuple(group)) for (layer, is_backward), group in by_layer if is_backward is backward)
        return tuple(LayerTasks(layer, tasks[0].phase, tasks) for layer, tasks in groups)
