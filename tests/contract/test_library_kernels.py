"""Kernels of torch.library: tasks of their own operator, run as they are, priced by what is known."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import register_flop_formula

import membench
from membench.core import configuration
from membench.core.libraries.torch_internals import flop_formulas
from membench.core.step.workload import Workload
from membench.steps.plan import plan
from membench.strategies.memonger import Memonger
from membench.strategies.pytorch import PyTorch
from tests.helpers.networks.contract import COST, as_run
from tests.helpers.steps.checks import check_results_and_peak

RATE = configuration.load("framework", "pytorch").efficiency.kernels.product
"""Of a device's peak, in products."""


@torch.library.custom_op("membench_tests::scale", mutates_args=())
def scale(inputs: Tensor, weight: Tensor) -> Tensor:
    return inputs * weight


@scale.register_fake
def _(inputs: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(inputs)


@torch.library.custom_op("membench_tests::scale_backward", mutates_args=())
def scale_backward(gradient: Tensor, inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return gradient * weight, (gradient * inputs).sum(0)


@scale_backward.register_fake
def _(gradient: Tensor, inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gradient), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> Any:
    return scale_backward(gradient, *ctx.saved_tensors)


scale.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("membench_tests::shift", mutates_args={"inputs"})
def shift(inputs: Tensor, by: float) -> None:
    inputs += by


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, inputs: Tensor) -> Tensor:
        scaled = scale(self.first(inputs), self.scale)
        offset = torch.zeros_like(inputs)
        shift(offset, 0.5)
        return self.second(torch.ops.membench_tests.scale(scaled, self.scale)) + offset


def _workload() -> Workload:
    torch.manual_seed(0)
    inputs = torch.randn(16, 8)
    return Workload("scaled", Network(), nn.functional.mse_loss, (inputs,), (torch.randn(16, 8),))


@pytest.mark.parametrize("strategy", [PyTorch(), Memonger()], ids=["pytorch", "memonger"])
def test_it_runs_on_the_cpu_with_the_bits_of_plain_pytorch(strategy: Any) -> None:
    case = as_run(_workload())
    operators = {task.call.operator for task in case.captured.graph.tasks if task.call}
    assert {f"membench_tests.{name}.default" for name in ("scale", "scale_backward", "shift")} <= operators
    schedule = plan(case.captured.graph, strategy, COST, None)
    check_results_and_peak(case, schedule)


@pytest.fixture
def formula() -> Iterator[None]:
    packet = torch.ops.membench_tests.scale
    register_flop_formula(packet)(lambda inputs, weight, out_shape=None: 10**12)
    yield
    del flop_formulas()[packet]


def _predicted(precision: str = "bf16") -> membench.Prediction:
    work = _workload()
    return membench.predict(
        work.module, work.loss, (work.inputs[0], work.targets[0]), device="a100_80gb", precision=precision
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp_bf16"])
def test_kernels_without_a_formula_are_named(precision: str) -> None:
    names = ("membench_tests.scale", "membench_tests.shift", "membench_tests.scale_backward")
    assert _predicted(precision).priced_by_bytes == names


def test_a_registered_formula_is_priced(formula: None) -> None:
    by_bytes = _predicted_without(formula)
    answer = _predicted()
    assert "membench_tests.scale" not in answer.priced_by_bytes
    of_two_uses_s = 2 * 1e12 / (RATE * 312e12)  # of an A100's peak
    assert answer.step_time_s - by_bytes == pytest.approx(of_two_uses_s, rel=0.05)


def _predicted_without(_: None) -> float:
    packet = torch.ops.membench_tests.scale
    function = flop_formulas().pop(packet)
    try:
        return _predicted().step_time_s
    finally:
        flop_formulas()[packet] = function


def test_torch_s_own_operators_are_not_named() -> None:
    module, inputs = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    answer = membench.predict(module, nn.functional.mse_loss, (inputs, inputs), device="a100_80gb")
    assert answer.priced_by_bytes == ()


def test_membench_s_own_operators_are_not_named() -> None:
    """Those that read and restore the random state of a region that runs again."""

    class Region(Network):
        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = checkpoint(super().forward, inputs, use_reentrant=False)
            return output

    inputs = torch.randn(16, 8)
    answer = membench.predict(Region(), nn.functional.mse_loss, (inputs, inputs), device="a100_80gb")
    assert {name.partition(".")[0] for name in answer.priced_by_bytes} == {"membench_tests"}
