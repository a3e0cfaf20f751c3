"""The memory that PyTorch reserves on a GPU while a script trains: a schedule's steps, played on the caching allocator.

A training script, and the order of its requests:

    module.to("cuda")                     # weights and buffers, each a request of its own
    for inputs, labels in loader:
        inputs, labels = to("cuda")       # the last ones are freed: the names hold the batch in host memory
        optimizer.zero_grad()             # frees the last step's gradients
        loss = ...; loss.backward()       # the schedule's instructions
        optimizer.step()                  # makes the optimizer's state in the first step

A workspace is requested after a task's results and freed with the task; the update's temporaries are one request for
each weight. An optimizer's state is requested by the first task that uses it. The libraries' requests are those of
`membench.cost.library_memory`. For a convolution whose workspace a full device has no room for, PyTorch runs cuDNN's
next algorithm; one without a workspace is assumed. Where it tries algorithms (``torch.backends.cudnn.benchmark``), it
gives unused memory back to the device after each new convolution's trial (``aten/src/ATen/native/cudnn/Conv_v8.cpp``).
What the trials themselves take is not counted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from membench.core.errors import OutOfMemory
from membench.core.graph.convolution import Convolution
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    Compute,
    Decode,
    Encode,
    Free,
    Hold,
    Prefetch,
    RepeatedSchedule,
    Reserve,
    Reuse,
    Schedule,
)
from membench.core.graph.task_graph import ARGUMENT_ROLES, RESULT_ROLES, Block, GradientOf, Phase, Role, Task, TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.cost.library_memory import convolution_workspace_bytes, has_product, product_workspace_bytes
from membench.planning.memory.caching_allocator import CachingAllocator

STEPS = 3
"""The first step makes gradients and optimizer state between activations; after the third, memory repeats."""


@dataclass(frozen=True)
class ReservedMemory:
    """Memory of a training as PyTorch counts it.

    Attributes:
        allocated_bytes: the most that the pieces in use take: ``torch.cuda.max_memory_allocated``.
        reserved_bytes: the most that is reserved on the device: ``torch.cuda.max_memory_reserved``.
        fragmentation_bytes: reserved but not in use when the most is reserved for the first time.
    """

    allocated_bytes: int
    reserved_bytes: int
    fragmentation_bytes: int


def reserved_memory(
    plan: Sequence[RepeatedSchedule], allocator: CachingAllocator, device: DeviceProfile, *, steps: int = STEPS
) -> ReservedMemory:
    """Play a training of some steps.

    Args:
        plan: a step's plan; of each micro-batch's size, as many runs are played as there are steps, at most.
        allocator: a new one.
        device: on which the libraries run.

    Raises:
        OutOfMemory: the training does not fit the allocator's device.
    """
    script = _Script(allocator)
    runs = [(run.schedule, list(_requests(run.schedule, device)), min(run.count, steps)) for run in plan]
    for _ in range(steps):
        script.begin_step()
        for schedule, requests, count in runs:
            for _ in range(count):
                script.play(schedule.graph, requests)
    return script.peaks


class _Script:
    """A training script: what it holds between and during its steps.

    Attributes:
        peaks: peaks of memory so far.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._product_workspaces: set[bool] = set()  # of which threads: whether it is autograd's
        self._tried: set[_Trial] = set()
        self._kept: dict[tuple[str, Role], int] = {}  # addresses of what outlives a run, by name and role
        self._addresses: dict[int, int] = {}  # of a run's blocks, by index
        self._hold: int | None = None  # address of a pool's unused part
        self.peaks = ReservedMemory(0, 0, 0)

    def begin_step(self) -> None:
        """Free what the last step returned, and its arguments."""
        for kept in [kept for kept in self._kept if kept[1] in ARGUMENT_ROLES | RESULT_ROLES]:
            self._allocator.free(self._kept.pop(kept))

    def play(self, graph: TaskGraph, requests: Sequence["_Request"]) -> None:
        """Play a step, or one micro-batch of it."""
        of_step = [block for block in graph.blocks if block.is_external]
        late = frozenset({Role.OPTIMIZER_STATE})
        self.keep(block for block in of_step if block.role not in ARGUMENT_ROLES | late)
        self.keep(block for block in of_step if block.role in ARGUMENT_ROLES)
        for method, arguments in requests:
            method(self, *arguments)
        for index, address in self._addresses.items():  # results, which the caller holds
            kept = graph.blocks[index].name, graph.blocks[index].role
            if kept in self._kept:
                self._allocator.free(self._kept.pop(kept))
            self._kept[kept] = address
        self._addresses.clear()

    def keep(self, blocks: Iterable[Block]) -> None:
        """Have blocks that outlive the run, from their first use on."""
        for block in blocks:
            kept = block.name, block.role
            if kept not in self._kept and block.size_bytes:
                self._kept[kept] = self._allocate(block.size_bytes, block.pool)

    def open(self, block: int, size_bytes: int, pool: str) -> None:
        """Open a space for a block, unless one was taken over for it."""
        if block not in self._addresses:
            self._addresses[block] = self._allocate(size_bytes or 1, pool)

    def take_over(self, block: int, dead: int) -> None:
        """Give the space of a dead block to another."""
        self._addresses[block] = self._addresses.pop(dead)

    def free(self, block: int) -> None:
        """Close a block's space."""
        self._allocator.free(self._addresses.pop(block))

    def hold(self, size_bytes: int) -> None:
        """Hold that much of a pool."""
        if self._hold is not None:
            self._allocator.free(self._hold)
        self._hold = self._allocate(size_bytes) if size_bytes else None

    def multiply(self, workspace_bytes: int, *, is_backward: bool) -> None:
        """Have the workspace of products of matrices, which a thread keeps from its first one on."""
        if is_backward not in self._product_workspaces:
            self._product_workspaces.add(is_backward)
            self._allocate(workspace_bytes)

    def try_algorithms(self, trial: "_Trial") -> None:
        """Give unused memory back to the device, as PyTorch does when it has tried a convolution for the first time."""
        if trial not in self._tried:
            self._tried.add(trial)
            self._allocator.release_cached()

    def convolve(self, workspace_bytes: int) -> None:
        """Take a convolution's workspace, if there is room, and give it back."""
        with suppress(OutOfMemory):
            self.use([workspace_bytes])

    def use(self, workspaces: Sequence[int]) -> None:
        """Take a task's workspaces, and give them back."""
        for address in [self._allocate(size_bytes) for size_bytes in workspaces]:
            self._allocator.free(address)

    def _allocate(self, size_bytes: int, pool: str = "") -> int:
        allocator = self._allocator
        address = allocator.allocate(size_bytes, stream=pool or COMPUTE_STREAM)
        peaks, is_peak = self.peaks, allocator.reserved_bytes > self.peaks.reserved_bytes
        if is_peak or allocator.allocated_bytes > peaks.allocated_bytes:
            unused_bytes = allocator.reserved_bytes - allocator.allocated_bytes
            self.peaks = ReservedMemory(
                max(peaks.allocated_bytes, allocator.allocated_bytes),
                max(peaks.reserved_bytes, allocator.reserved_bytes),
                unused_bytes if is_peak else peaks.fragmentation_bytes,
            )
        return address


_Trial = tuple[Convolution, Phase, GradientOf | None]
"""By which PyTorch knows that a convolution is not new."""
_Request = tuple[Callable[..., None], tuple[Any, ...]]
"""A method of `_Script`, and its arguments."""


def _requests(schedule: Schedule, device: DeviceProfile) -> Iterator[_Request]:
    """Yield what a run asks of the script, in order: the same in each step."""
    graph = schedule.graph
    sizes: dict[int, int] = {}  # of spaces that are larger than their block
    for instruction in schedule.instructions:
        match instruction:
            case Compute(task) if not graph.tasks[task].on_host:
                yield from _of_task(graph.tasks[task], graph, sizes, device)
            case Free(block):
                yield _Script.free, (block,)
            case Prefetch(block) | Decode(block) | Encode(encoded=block):
                yield _opening(graph.blocks[block], sizes)
            case Reserve(block, size_bytes):
                sizes[block] = size_bytes
            case Reuse(block, dead):
                yield _Script.take_over, (block, dead)
            case Hold(size_bytes):
                yield _Script.hold, (size_bytes,)


def _of_task(task: Task, graph: TaskGraph, sizes: dict[int, int], device: DeviceProfile) -> Iterator[_Request]:
    touched = (graph.blocks[block] for block in (*task.reads, *task.writes))
    states = [each for each in touched if each.role is Role.OPTIMIZER_STATE and not each.host_location]
    if states:
        yield _Script.keep, (states,)
    for block in task.creates:
        yield _opening(graph.blocks[block], sizes)
    if has_product(task):
        multiply = partial(_Script.multiply, is_backward=task.phase is Phase.BACKWARD)
        yield multiply, (product_workspace_bytes(device),)
    if workspaces := tuple(_workspaces(task, graph)):
        yield _Script.use, (workspaces,)
    if device.benchmarks_convolutions and task.convolution is not None and not task.convolution.is_depthwise:
        yield _Script.try_algorithms, ((task.convolution, task.phase, task.gradient_of),)
    if workspace_bytes := convolution_workspace_bytes(task, device):
        yield _Script.convolve, (workspace_bytes,)


def _opening(block: Block, sizes: dict[int, int]) -> _Request:
    return _Script.open, (block.index, sizes.pop(block.index, block.size_bytes), block.pool)


def _workspaces(task: Task, graph: TaskGraph) -> Iterator[int]:
    """Yield the sizes of the requests of a task's own workspace."""
    rest_bytes = task.workspace_bytes
    if task.phase is Phase.UPDATE:
        blocks = (graph.blocks[block] for block in task.writes)
        weights = [block.size_bytes for block in blocks if block.role is Role.WEIGHT]
        while weights and rest_bytes >= sum(weights):
            yield from weights
            rest_bytes -= sum(weights)
    if rest_bytes:
        yield rest_bytes
