"""A whole step, copies included, as one CUDA graph: one launch for a step instead of one for each kernel."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _POOL_HANDLE

from membench.backends.cuda import CudaBackend
from membench.backends.cuda_memory import drop_library_workspaces
from membench.core.errors import UnsupportedStrategy
from membench.core.schedule import Encode
from membench.core.task_graph import ARGUMENT_ROLES, Role, TaskGraph
from membench.execution.executor import Program

GraphPool = _POOL_HANDLE
"""Names a pool of memory; torch has no public name for the type."""


def with_staged_arguments(graph: TaskGraph) -> TaskGraph:
    """Count what a replayed step holds beside the graph's blocks: its own copies of the arguments."""
    arguments = [block for block in graph.blocks if block.role in ARGUMENT_ROLES]
    staged = (
        replace(block, index=len(graph.blocks) + position, name=f"{block.name}:staged", role=Role.CONSTANT)
        for position, block in enumerate(arguments)
    )
    return replace(graph, blocks=(*graph.blocks, *staged))


class ReplayedProgram:
    """Runs a schedule by itself once, then captures it, and replays it from then on.

    The first run chooses algorithms and locks host memory, neither of which a capture may do. The captured step reads
    arguments from tensors of its own and leaves its results in the same memory each time.

    Args:
        program: to be run; its backend is the one given.
        pool: of memory, from `torch.cuda.graph_pool_handle`. Programs that run one after another share one.

    Raises:
        UnsupportedStrategy: the host takes part in the schedule.
    """

    def __init__(self, program: Program, backend: CudaBackend, pool: GraphPool) -> None:
        encodings = (item for item in program.schedule.instructions if isinstance(item, Encode))
        if any(item.codec.host_waits for item in encodings):
            raise UnsupportedStrategy(
                f"the host waits for each map that {program.schedule.strategy!r} encodes, which no CUDA graph can hold; "
                "leave cuda_graph out"
            )
        self._program = program
        self._backend = backend
        self._pool = pool
        self._arguments: list[Any] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._has_run = False

    @property
    def keeps_results(self) -> bool:
        """Whether the last run left its results in memory that the next one will overwrite."""
        return self._graph is not None

    def forget(self) -> None:
        """Give the graph and its memory up, in which a workspace of cuBLAS lies too: the next run captures again."""
        self._graph = None
        drop_library_workspaces(self._backend.device)

    def stage(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy a step's arguments to where the graph reads them; return those tensors."""
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
            # cuBLAS keeps a workspace for each stream, and a capture has a stream of its own
            drop_library_workspaces(self._backend.device)
            self._graph = self._capture()
        self._graph.replay()
        if self._backend.has_visitors:  # see `CudaBackend.end`
            torch.cuda.current_stream(self._backend.device).synchronize()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            try:
                self._program.issue(timed=False)
            except BaseException:
                self._backend.end()  # a capture that ends with a stream on its own would hide what happened
                raise
        return graph
