"""Part e: steps of compiled tasks on the GPU, which `membench.compile` refuses: `kernels="inductor"` runs on the CPU.

What is in its way: the programs of compiled tasks are built from the C++ that Inductor writes for a CPU
(`membench.backends.calls.compiled_functions`); for a GPU it writes Triton, so that every program would run call by
call. Here, and nowhere else, Inductor's own compiled functions take their place.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import membench
from benchmarks.gpu_visit.methods import Network
from benchmarks.gpu_visit.rows import Rows, Values, Visit
from membench.backends.calls.fused_graph import checked_graph, unfilled
from membench.core.errors import MembenchError, one_line
from membench.core.graph.fused_calls import FusedCalls
from membench.core.step.arguments import call_with
from membench.core.step.kernels import Kernels
from membench.core.step.workload import Workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy

NETWORKS = (("digits_cnn", 64), ("vit_b_16", 16), ("resnet18", 32))
SMALL_NETWORKS = (("digits_cnn", 8),)
METHODS = ("eager", "layrub_hybrid")

Function = Callable[[list[Tensor]], Sequence[Tensor]]


class InductorPrograms:
    """The functions of programs as Inductor compiles them for any device; stands for `CompiledFunctions`.

    Attributes:
        functions: None for a program that it does not compile.
        reasons: why, each once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.functions: dict[FusedCalls, Function | None] = {}
        self.reasons: list[str] = []

    def function(self, program: FusedCalls) -> Function | None:
        self.compile([program])
        return self.functions[program]

    def compile(self, programs: Sequence[FusedCalls]) -> None:
        for program in programs:
            if program not in self.functions:
                self.functions[program] = self._compiled(program)

    def _compiled(self, program: FusedCalls) -> Function | None:
        from torch._inductor import compile as compile_graph

        try:
            graph = checked_graph(program, self._device)
            # zeros: an index that is out of bounds would end a GPU's process
            examples: list[Any] = [unfilled(value, self._device).zero_() for value in program.inputs]
            with torch.no_grad():
                compiled = compile_graph(graph, examples, options={"fx_graph_cache": False})
        except Exception as error:  # a compiler fails in its own ways
            if (reason := f"{type(error).__name__}: {one_line(error)}") not in self.reasons:
                self.reasons.append(reason)
            return None
        return lambda inputs: compiled(*inputs)


def run(visit: Visit, rows: Rows) -> None:
    rows.measure("membench.compile with kernels=inductor", partial(_by_the_entry, visit))
    programs = InductorPrograms(visit.device)
    for name, batch_size in SMALL_NETWORKS if visit.is_small else NETWORKS:
        network = Network(name, batch_size, visit, nullcontext())
        for method in METHODS:
            rows.measure(f"{name} {batch_size} {method}", partial(with_inductor, network, method, programs))


def _by_the_entry(visit: Visit) -> Values:
    """Return whether the library's entry runs such a step, or how it refuses."""
    workload = Network(*SMALL_NETWORKS[0], visit, nullcontext()).workload
    batch = workload.inputs, workload.targets
    try:
        step = membench.compile(workload.module, workload.loss, batch, backend=visit.backend, kernels="inductor")
    except MembenchError as refusal:
        return {"refused": one_line(refusal)}
    step.close()  # type: ignore[union-attr]
    return {"refused": ""}  # fmt: skip


def with_inductor(network: Network, method: str, programs: InductorPrograms) -> Values:
    """Run a step of compiled tasks.

    Compare its gradients with those of eager PyTorch, in units of the largest of all.
    """
    workload = network.plain_workload
    expected = gradients(workload, lambda: _backward(workload))
    options = StepRequest(find_strategy(method)(), kernels=Kernels.INDUCTOR)
    with patch("membench.backends.calls.fused_calls.compiled_functions", lambda *_: programs):
        step = build_step(network.captures, network.cost, options)
        found = gradients(workload, lambda: step(workload.inputs, workload.targets))
        measured = step.measure()
    step.close()
    largest = max(float(value.abs().max()) for value in expected.values())
    error = max(float((found[name] - value).abs().max()) for name, value in expected.items())
    functions = list(programs.functions.values())
    return {
        "largest_error": error / largest,
        "programs": len(functions),
        "compiled": sum(each is not None for each in functions),
        "reasons": programs.reasons[:5],
        "peak_bytes": measured.peak_bytes,
        "predicted_peak_bytes": step.predicted_peak_bytes,
        "step_time_s": measured.throughput.step_time_s,
    }


def gradients(workload: Workload, run: Callable[[], object]) -> dict[str, Tensor]:
    """Return the gradients that a step leaves, and take them away; each call draws the same random numbers."""
    module = workload.module
    torch.manual_seed(0)
    module.zero_grad(set_to_none=True)
    run()
    made = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    module.zero_grad(set_to_none=True)
    return made


def _backward(workload: Workload) -> None:
    criterion: Any = workload.loss
    call_with(criterion, workload.targets, workload.output()).backward()
