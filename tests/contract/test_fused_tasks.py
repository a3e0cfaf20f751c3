"""The contract of every strategy over fused tasks: the bits of the same tasks without a method, and the stated peak."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from membench.conformance.results import Reference, reference_of, run_step
from membench.core.step.workload import Workload
from membench.planning.checking.validate import validate
from membench.planning.fusion.graph import fused
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.plan import plan
from tests.helpers.kernels.compiled_functions import cached_in, without_compiler
from tests.helpers.steps.checks import check_results_and_peak, step_of
from tests.helpers.steps.variants import VARIANTS


class Blocks(nn.Module):
    """Convolutions around which their input is added, batch norms, dropout, a layer norm and a gated product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.inner = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.dropout = nn.Dropout(0.3)
        self.rows = nn.LayerNorm(8)
        self.gate, self.rise, self.head = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        maps = nn.functional.relu6(self.norms[0](self.first(images)), inplace=True)
        for convolution, norm in zip(self.inner, self.norms[1:], strict=True):
            maps = (norm(convolution(maps)) + maps).relu()
        rows = self.rows(self.dropout(maps).flatten(2).mean(2))
        return self.head(nn.functional.silu(self.gate(rows)) * self.rise(rows))


def case_of_blocks() -> Reference:
    torch.manual_seed(0)
    images, classes = torch.randn(4, 3, 8, 8), torch.arange(4)
    return reference_of(Workload("blocks", Blocks(), nn.CrossEntropyLoss(), (images,), (classes,)))


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredCost]:
    with without_compiler(tmp_path_factory.mktemp("programs")):
        yield MeasuredCost(torch.device("cpu"))


@pytest.fixture(scope="module")
def case() -> Reference:
    return case_of_blocks()


@pytest.mark.parametrize("variant", VARIANTS)
def test_results_and_peak_are_exact_over_fused_tasks(variant: str, case: Reference, costs: MeasuredCost) -> None:
    """Call by call, fused tasks without a method have the bits of eager PyTorch."""
    schedule = plan(fused(case.captured.graph, on_cpu=True), VARIANTS[variant], costs, None)
    validate(schedule)
    check_results_and_peak(case, schedule)


TOLERANCE = 1e-4
"""Of a gradient, in the largest value of its weight's: what fusing rounds."""


@pytest.mark.exhaustive
def test_compiled_tasks_have_the_same_bits_under_every_strategy_and_are_close_to_eager_pytorch(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    case, costs = case_of_blocks(), MeasuredCost(torch.device("cpu"))
    with cached_in(tmp_path_factory.mktemp("programs")):
        graph = fused(case.captured.graph, on_cpu=True)
        eager = plan(graph, VARIANTS["eager"], costs, None)
        with step_of(case, eager, chaos=None) as step:
            results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
        for name, gradient in case.results.gradients.items():
            assert gradient is not None
            scale = float(gradient.abs().max())
            torch.testing.assert_close(results.gradients[name], gradient, rtol=0, atol=TOLERANCE * scale)
        of_fused = replace(case, results=results)
        for strategy in VARIANTS.values():
            check_results_and_peak(of_fused, plan(graph, strategy, costs, None))
