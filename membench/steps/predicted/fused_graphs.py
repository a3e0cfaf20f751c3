"""Graphs of a step of which parts are compiled, on a GPU: in Inductor's layout, and fused."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.core.checks import choice
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.libraries.torch_inductor import MEMORY_BUDGET, Compiler, changed_options, compiler_of, keeps_layout
from membench.core.step.kernels import WHOLE_STEP, Compiled, Kernels
from membench.planning.fusion.graph import fused
from membench.planning.fusion.layouts import becomes_channels_last


class FusedGraphs:
    """The graphs of a workload by its number of samples, each captured and fused once.

    Args:
        captures: captures of a step on a GPU.
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
        MembenchError: there are no such kernels, or the program has set a budget for what compiled code keeps.
    """
    given = {path: compiler_of(layer) for path, layer in module.named_modules()}
    inductor = {path: found for path, found in given.items() if found and found.name == _INDUCTOR}
    loss_compiler = compiler_of(loss)
    of_loss = loss_compiler is not None and loss_compiler.name == _INDUCTOR
    compilers = [*inductor.values(), *([loss_compiler] if loss_compiler and of_loss else [])]
    if kernels is None:
        chosen = Compiled(tuple(inductor), of_loss, keeps_layout()) if compilers else None
        return chosen, None if chosen is None else _with_options(chosen, compilers)
    whole = replace(WHOLE_STEP, keeps_layout=keeps_layout())
    is_compiled = choice(Kernels, "kernels", kernels) is Kernels.INDUCTOR
    return whole, _with_options(whole, compilers) if is_compiled else None


_INDUCTOR = "inductor"
_OF_OPTIONS = {
    "triton.cudagraphs": "CUDA graphs (mode='reduce-overhead' or 'max-autotune')",
    "max_autotune": "autotuning (mode='max-autotune')",
    "coordinate_descent_tuning": "autotuning (mode='max-autotune')",
}


def _with_options(compiled: Compiled, compilers: Iterable[Compiler]) -> Compiled:
    """Return what is compiled with a sentence for each option that is not predicted.

    Raises:
        MembenchError: the program has set a budget for what compiled code keeps for the backward pass.
    """
    changed = changed_options()
    if MEMORY_BUDGET in changed:
        raise MembenchError(
            f"{MEMORY_BUDGET} is {changed[MEMORY_BUDGET]}, and compiled steps are predicted with 1.0; set it to that, "
            "or give a budget to a method of membench: strategy='joint', budget='20 GB'"
        )
    sentences = [
        f"{name} = {value!r} is not predicted: compiled code is that of its default." for name, value in changed.items()
    ]
    for compiler in compilers:
        for name, value in compiler.options.items():
            what = (
                _OF_OPTIONS.get(name, f"the option {name} = {value!r}") if value else f"the option {name} = {value!r}"
            )
            sentences.append(f"torch.compile with {what} is not predicted: compiled code is that of the default mode.")
        if compiler.is_dynamic:
            sentences.append("torch.compile with dynamic=True is not predicted: compiled code is for fixed sizes.")
    return replace(compiled, unpredicted=tuple(dict.fromkeys(sentences)))
