"""Graphs of a step of which parts are compiled, on a GPU: in Inductor's layout, and fused."""

from collections.abc import Callable, Collection
from dataclasses import replace

from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.core.checks import choice
from membench.core.kernels import WHOLE_STEP, Compiled, Kernels
from membench.core.task_graph import TaskGraph
from membench.core.torch_inductor import keeps_layout
from membench.core.torch_internals import is_compiled_by_inductor
from membench.planning.fusion.graph import fused
from membench.planning.fusion.layouts import becomes_channels_last


class FusedGraphs:
    """The graphs of a workload by its number of samples, each captured and fused once.

    Args:
        captures: of a step on a GPU.
        compiled, apart: see `fused`.
    """

    def __init__(self, captures: Captures, compiled: Compiled, apart: Collection[str] = ()) -> None:
        self._captures, self._compiled, self._apart = captures, compiled, apart
        self._fused: dict[int, TaskGraph] = {}

    def graph_at(self, size: int) -> TaskGraph:
        """Return the graph of the step on that many samples; see `Captures.at`."""
        if size not in self._fused:
            self._fused[size] = fused(self._captured(size), self._compiled, self._apart)
        return self._fused[size]

    def _captured(self, size: int) -> TaskGraph:
        graph = self._captures.graph_at(size)
        may_change = "" in self._compiled.modules and not self._compiled.keeps_layout
        if not may_change or self._captures.workload.channels_last or not becomes_channels_last(graph):
            return graph
        self._captures = self._captures.in_channels_last()
        return self._captures.graph_at(size)


StepGraphs = Captures | FusedGraphs
"""The graphs of a step by its number of samples, as `graph_at`."""


def step_graphs(captures: Captures, compiled: Compiled | None, apart: Collection[str] = ()) -> StepGraphs:
    """Return the graphs of captured steps of which parts are compiled, see `fused`; None: nothing is."""
    return captures if compiled is None else FusedGraphs(captures, compiled, apart)


def compiled_parts(
    module: nn.Module, loss: Callable[..., Tensor] | None, kernels: str | None
) -> tuple[Compiled | None, Compiled | None]:
    """Return what of a step may have been given to `torch.compile`, and what of it is predicted as compiled.

    Args:
        kernels: one of `Kernels`; None: what was given to `torch.compile` is compiled.

    Raises:
        MembenchError: there are no such kernels.
    """
    if kernels is not None:
        whole = replace(WHOLE_STEP, keeps_layout=keeps_layout())
        return whole, whole if choice(Kernels, "kernels", kernels) is Kernels.INDUCTOR else None
    paths = tuple(path for path, layer in module.named_modules() if is_compiled_by_inductor(layer))
    of_loss = is_compiled_by_inductor(loss)
    found = Compiled(paths, of_loss, keeps_layout()) if paths or of_loss else None
    return found, found
