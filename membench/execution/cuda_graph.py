"""A whole step, including its copies, as one CUDA graph: one launch per step instead of one per kernel."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.accelerator_memory import drop_library_workspaces
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Encode
from membench.core.graph.task_graph import ARGUMENT_ROLES, Role, TaskGraph
from membench.core.libraries.torch_devices import GraphPool
from membench.execution.executor import BoundSchedule


def with_staged_arguments(graph: TaskGraph) -> TaskGraph:
    """Add the memory that a replayed step holds in addition to the graph's blocks: its copies of the arguments."""
    return graph.map(_with_staged_arguments)


def _with_staged_arguments(graph: TaskGraph) -> TaskGraph:
    arguments = [block for block in graph.blocks if block.role in ARGUMENT_ROLES]
    staged = (
        replace(block, index=len(graph.blocks) + position, name=f"{block.name}:staged", role=Role.CONSTANT)
        for position, block in enumerate(arguments)
    )
    return replace(graph, blocks=(*graph.blocks, *staged))


class ReplayedSchedule:
    """Runs a schedule directly once, then captures it, and replays it from then on.

    The first run chooses algorithms and locks host memory, which a capture must not do. The captured step reads
    arguments from its own tensors and leaves its results in the same memory each time.

    Args:
        program: to be run, on that backend.
        backend: a GPU's backend.
        pool: a pool of memory, from `torch.cuda.graph_pool_handle`. Programs that run one after another share a pool.

    Raises:
        UnsupportedStrategy: the schedule synchronises with the host.
    """

    def __init__(self, program: BoundSchedule, backend: AcceleratorBackend, pool: GraphPool) -> None:
        encodings = (item for item in program.schedule.instructions if isinstance(item, Encode))
        if any(item.codec.host_waits for item in encodings):
            raise UnsupportedStrategy(
                f"the host waits for each activation that {program.schedule.strategy!r} encodes, which a CUDA graph "
                "cannot contain; leave cuda_graph out"
            )
        self._program = program
        self._backend = backend
        self._pool = pool
        self._arguments: list[Any] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._has_run = False

    @property
    def keeps_results(self) -> bool:
        """Whether the last run left its results in memory that the next run overwrites."""
        return self._graph is not None

    def forget(self) -> None:
        """Release the graph and its memory, including a workspace of cuBLAS; the next run captures again."""
        self._graph = None
        drop_library_workspaces(self._backend.device)

    def stage(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy a step's arguments to the tensors that the graph reads, and return those."""
        if not self._arguments:
            self._arguments = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
        for own, given in zip(self._arguments, arguments, strict=True):
            if isinstance(own, Tensor):
                own.copy_(given)
        return tuple(self._arguments)

    def issue(self) -> None:
        """Issue one step."""
        if not self._has_run:
            self._program.issue(timed=False)
            self._has_run = True
            return
        if self._graph is None:
            # cuBLAS keeps a workspace for each stream, and a capture has a separate stream
            drop_library_workspaces(self._backend.device)
            self._graph = self._capture()
        self._graph.replay()
        if self._backend.has_host_resident_blocks:  # see `AcceleratorBackend.end`
            torch.cuda.current_stream(self._backend.device).synchronize()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self._backend.is_captured = True
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                try:
                    self._program.issue(timed=False)
                except BaseException:
                    self._backend.end()  # a capture that ends with an unjoined stream would hide the error
                    raise
        finally:
            self._backend.is_captured = False
        return graph
