"""Strategies on an emulated GPU whose streams run apart: the bits of eager PyTorch there."""

from collections.abc import Iterator
from functools import cache

import pytest

from membench.backends.accelerator import AcceleratorBackend
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compiled_step import CompiledStep
from membench.steps.plan import plan
from tests.helpers.emulator import delay_jobs, load_emulator
from tests.helpers.networks import NETWORKS, ONLY_SLOW, Reference, reference_of, run_step, workload
from tests.helpers.variants import VARIANTS

pytestmark = pytest.mark.accelerator
LONGEST_DELAY_S = 200e-6
WITH_TRITON = {"auto", "epmc", "epmc, fp8", "gist"}
"""Variants that may encode activations, by kernels of Triton's on a GPU, which the emulated one does not run."""


@cache
def cost() -> MeasuredCost:
    return MeasuredCost(load_emulator())


@cache
def reference(name: str) -> Reference:
    return reference_of(workload(NETWORKS[name], name, device=cost().device.type))


@pytest.fixture(autouse=True)
def delays() -> Iterator[None]:
    cost()
    delay_jobs(0, 0.0)
    yield
    delay_jobs(0, 0.0)


def step_of(case: Reference, variant: str) -> CompiledStep:
    schedule = plan(case.captured.graph, VARIANTS[variant], cost(), None)
    return CompiledStep(case.work, case.captured, schedule, AcceleratorBackend(schedule, cost().device))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in WITH_TRITON])
@pytest.mark.parametrize("network", [name for name in NETWORKS if name not in ONLY_SLOW])
def test_results_are_those_of_eager_however_late_copies_and_kernels_are(network: str, variant: str) -> None:
    case = reference(network)
    step = step_of(case, variant)
    for seed in range(2):
        delay_jobs(seed, LONGEST_DELAY_S)
        results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
        delay_jobs(0, 0.0)
        case.results.check(results, rounding=step.schedule.rounding)
    step.close()
