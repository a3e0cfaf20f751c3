"""Programs compiled at once, kept on disk, and call by call where Inductor does not compile them."""

import logging
from pathlib import Path
from shutil import which
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.backends.calls import compiled_functions
from membench.backends.calls.compiled_functions import CompiledFunctions
from membench.backends.calls.kernel_library import CompiledFunction, function_of, library_source, opened_library
from membench.capture.capture import capture
from membench.core.graph.call import Call
from membench.core.graph.fused_calls import FusedCalls, fused_calls_of
from membench.core.libraries.torch_inductor import build_library
from membench.core.step.workload import Workload
from membench.planning.fusion.graph import fused
from tests.helpers.kernels.compiled_functions import without_compiler

CPU = torch.device("cpu")


def programs_of(module: nn.Module, *arguments: Tensor) -> list[FusedCalls]:
    captured = capture(Workload("a network", module, lambda output: output.sum(), arguments))
    return [each for task in fused(captured.graph).tasks if (each := fused_calls_of(task.call))]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))
    return nn.Sequential(*layers)


def test_a_program_that_inductor_does_not_compile_runs_call_by_call_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = torch.randn(2, 3, 8, 8)
    eager, compiled = network(), network()
    with without_compiler(tmp_path), caplog.at_level(logging.WARNING, "membench"):
        step = membench.compile(compiled, lambda output: output.sum(), (images, ()), kernels="inductor")
        for module, run in ((eager, lambda: eager(images).sum().backward()), (compiled, lambda: step(images))):
            module.zero_grad()
            torch.manual_seed(1)  # random numbers are drawn as eager PyTorch draws them
            run()
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("Inductor does not compile native_batch_norm + relu; ")
    assert line.endswith("; eager PyTorch runs them: there is no compiler")


def test_a_wrapped_module_runs_fused_tasks(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 8, 8)
    module, results = network(), []
    with without_compiler(tmp_path):
        wrapped = membench.wrap(module, kernels="inductor", strategy="joint")
        for call in (module, wrapped):
            module.zero_grad()
            torch.manual_seed(1)
            call(images).square().sum().backward()
            results.append([weight.grad for weight in module.parameters()])
    assert all(map(torch.equal, *results))
    [step] = wrapped.wrapped_calls.steps
    assert any(fused_calls_of(task.call) for task in step.schedule.graph.tasks)


def test_a_library_has_each_kernel_once() -> None:
    kernels = [
        CompiledFunction(("const float*", "float*"), f"#include <a.h>\nvoid kernel(int {name})") for name in "xyx"
    ]
    source = library_source(kernels)
    assert source.count("#include <a.h>") == 1 and source.count("METH_FASTCALL") == 2
    assert f"void kernel_{kernels[0].name}(int x)" in source


def test_a_kernel_that_takes_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="int64_t, which are not all pointers"):
        library_source([CompiledFunction(("float*", "int64_t"), "void kernel(float* a, int64_t b)")])


@pytest.mark.slow
@pytest.mark.skipif(which("c++") is None, reason="needs a C++ compiler")
def test_a_kernel_of_a_library_works_on_the_memory_of_tensors_and_raises_what_it_throws(tmp_path: Path) -> None:
    double = CompiledFunction(("const float*", "float*"), "void kernel(const float* x, float* y) { y[0] = 2 * x[0]; }")
    throws = CompiledFunction(
        ("float*",), '#include <stdexcept>\nvoid kernel(float*) { throw std::range_error("far"); }'
    )
    source = tmp_path / "kernels.cpp"
    source.write_text(library_source([double, throws]))
    library = opened_library(build_library(source, tmp_path))
    three, doubled = torch.tensor([0.0, 3.0])[1:], torch.zeros(1)
    assert function_of(double, library)(three, doubled) is None and doubled.item() == 6
    with pytest.raises(RuntimeError, match="far"):
        function_of(throws, library)(three)
    with pytest.raises(RuntimeError, match="tensor"):
        function_of(double, library)(three, 6.0)
    with pytest.raises(AttributeError):
        function_of(CompiledFunction(("float*",), "void kernel(float*) {}"), library)


@pytest.mark.exhaustive
def test_compiled_programs_are_kept_on_disk_and_a_broken_cache_is_made_again(tmp_path: Path) -> None:
    found = programs_of(network(), torch.randn(2, 3, 8, 8))
    first = CompiledFunctions(CPU, 1, tmp_path)
    first.compile(found)
    assert all(map(first.function, found))
    assert len(list(tmp_path.glob("*.so"))) == 1
    with patch.object(compiled_functions, "written_source", side_effect=AssertionError("compiled again")):
        again = CompiledFunctions(CPU, 1, tmp_path)
        assert all(map(again.function, found))
    [library] = tmp_path.glob("*.so")
    library.unlink()
    third = CompiledFunctions(CPU, 1, tmp_path)
    assert all(map(third.function, found))


@pytest.mark.exhaustive
def test_a_kernel_raises_what_it_throws(tmp_path: Path) -> None:
    rows, classes = torch.randn(4, 3), torch.tensor([0, 1, 2, 7])
    loss = nn.functional.cross_entropy
    module = nn.Linear(3, 3)
    graph = capture(Workload("rows", module, loss, (rows,), (classes.clamp(max=2),))).graph
    calls: list[Call] = [task.call for task in fused(graph).tasks if fused_calls_of(task.call) and task.call]
    program = fused_calls_of(calls[0])
    assert program is not None and "_log_softmax" in program.calls[0].operator
    function = CompiledFunctions(CPU, 1, tmp_path).function(program)
    assert function is not None
    with pytest.raises(RuntimeError, match="index out of bounds"):
        function([rows, classes])
