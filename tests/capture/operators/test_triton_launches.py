"""Kernels of Triton: found in a trace, with what they read and write, and named where their bytes alone are known."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama import modeling_llama

import membench
from membench.capture.capture import capture
from membench.capture.operators.triton_source import accesses, python_function
from membench.capture.trace import ANY_GPU
from membench.core.errors import MembenchError
from membench.core.step.workload import Workload
from tests.helpers.networks.llama import small_llama_config

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

ELEMENTS = 4 * 8


@triton.jit  # type: ignore[untyped-decorator]
def _stored(pointer, value, offsets):  # type: ignore[no-untyped-def]
    tl.store(pointer + offsets, value)


@triton.jit  # type: ignore[untyped-decorator]
def _scaled(source_ptr, factor_ptr, target_ptr, counts_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = source_ptr + offsets
    source = tl.load(at, mask=offsets < n)
    factor = tl.load(factor_ptr)
    source *= factor
    _stored(target_ptr, source, offsets)
    tl.atomic_add(counts_ptr, 1)


_tuned = triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])(_scaled)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, factor: Tensor, kernel: Any) -> Tensor:
        target, counts = torch.empty_like(source), torch.zeros(1, dtype=torch.int32, device=source.device)
        ctx.save_for_backward(factor)
        ctx.kernel = kernel
        _launched(kernel, source, factor, target, counts)
        return target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        [factor] = ctx.saved_tensors
        target, counts = torch.empty_like(gradient), torch.zeros_like(factor, dtype=torch.int32)
        _launched(ctx.kernel, gradient, factor, target, counts)
        return target, None, None


def _launched(kernel: Any, source: Tensor, factor: Tensor, target: Tensor, counts: Tensor) -> None:
    n = source.numel()
    if kernel is _tuned:
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](source, factor, target, counts, n)
    else:
        kernel[(triton.cdiv(n, 16),)](source, factor, target, counts, n=n, BLOCK=16)


class Network(nn.Module):
    def __init__(self, kernel: Any, layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.register_buffer("factor", torch.ones(1))
        self.kernel = kernel

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = Scale.apply(layer(inputs), self.factor, self.kernel)
        return inputs


def _captured(network: nn.Module) -> Any:
    inputs = torch.randn(4, 8)
    return capture(Workload("w", network, nn.functional.mse_loss, (inputs,), (inputs,)), ANY_GPU)


def test_reads_and_writes_are_found_in_the_source() -> None:
    function = python_function(_tuned)
    assert function is not None
    found = accesses(function)
    tensors = {"source_ptr", "factor_ptr", "target_ptr", "counts_ptr"}
    assert found.reads & tensors == {"source_ptr", "factor_ptr", "counts_ptr"}
    assert found.writes & tensors == {"target_ptr", "counts_ptr"}


@pytest.mark.parametrize("kernel", [_scaled, _tuned], ids=["jit", "autotuned"])
def test_a_launch_is_a_task_that_moves_what_it_reads_and_writes(kernel: Any) -> None:
    step = _captured(Network(kernel))
    launches = [task for task in step.graph.tasks if task.name.endswith(":_scaled")]
    assert len(launches) == 2
    forward = launches[0]
    assert step.buffers["factor"] in forward.reads
    assert step.buffers["factor"] not in forward.writes
    assert len(forward.writes) == 2
    assert not forward.creates
    assert forward.moved_bytes == ELEMENTS * 4 + 4 + 4  # what is only written is added by the cost of writing
    assert not forward.operations


def test_equal_launches_are_one_operator() -> None:
    tasks = _captured(Network(_tuned, layers=3)).graph.tasks
    operators = {task.call.operator for task in tasks if task.name.endswith(":_scaled")}
    assert len(operators) == 1


def test_a_launch_is_named_as_priced_by_its_bytes_and_refused_on_the_cpu() -> None:
    inputs = torch.randn(4, 8)
    arguments: tuple[Any, ...] = (Network(_scaled), nn.functional.mse_loss, (inputs, inputs))
    assert membench.predict(*arguments, device="a100_80gb").priced_by_bytes == ("triton._scaled",)
    with pytest.raises(MembenchError, match=r"Triton's kernel _scaled runs on a GPU alone; predict the step"):
        membench.compile(*arguments)


@pytest.mark.slow
def test_an_interpreted_kernel_gives_the_bits_of_plain_pytorch() -> None:
    """In a process of its own: Triton decides when it is imported."""
    command = [sys.executable, "-m", "tests.helpers.kernels.launched_kernels"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip().endswith("agreed"), run.stderr


@pytest.fixture
def liger() -> Iterator[Callable[[nn.Module], None]]:
    """Return a function that puts Liger's kernels into a Llama, and into its module until the test ends."""
    transformers = pytest.importorskip("liger_kernel.transformers")
    before = dict(vars(modeling_llama))
    yield lambda model: transformers.apply_liger_kernel_to_llama(
        fused_linear_cross_entropy=False, cross_entropy=False, model=model
    )
    vars(modeling_llama).update(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_liger_s_kernels_in_a_llama_are_predicted(liger: Callable[[nn.Module], None]) -> None:
    config = small_llama_config(intermediate_size=96, num_hidden_layers=2)
    tokens = torch.randint(64, (2, 32))
    peaks, names = [], ()
    for with_liger in (False, True):
        module = LlamaForCausalLM(config)
        if with_liger:
            liger(module)
        answer = membench.predict(
            module, lambda output: output.loss, ({"input_ids": tokens, "labels": tokens}, ()), device="a100_80gb",
            precision="bf16",
        )  # fmt: skip
        peaks.append(answer.allocated_bytes)
        names = answer.priced_by_bytes
    assert peaks[1] < peaks[0]
    assert {name.removeprefix("triton._") for name in names} >= {
        "rms_norm_forward_kernel", "rms_norm_backward_kernel", "swiglu_forward_kernel", "swiglu_backward_kernel",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_liger_s_fused_loss_counts_the_targets_of_the_batch() -> None:
    transformers = pytest.importorskip("liger_kernel.transformers")

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 512, bias=False)
            self.loss = transformers.LigerFusedLinearCrossEntropyLoss()

        def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
            loss: Tensor = self.loss(self.head.weight, _doubled(inputs), targets)
            return loss

    inputs, targets = torch.randn(256, 64), torch.randint(512, (256,))
    answer = membench.predict(
        Loss(), lambda output: output, ((inputs, targets), ()), device="a100_80gb", precision="bf16"
    )
    assert answer.depends_on_values
    assert "triton.liger_cross_entropy_kernel" in answer.priced_by_bytes


def _doubled(inputs: Tensor) -> Tensor:
    """Return twice as much, by a kernel that only a GPU has."""
    output: Tensor = Scale.apply(inputs, torch.ones(1, device=inputs.device), _scaled)
    return output
