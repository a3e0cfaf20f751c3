"""What must hold on a GPU, for every strategy; `make test-gpu` runs it."""

import os
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from membench.backends.cuda import CudaBackend
from membench.capture.capture import Captures, capture
from membench.cost.measured import MeasuredCost
from membench.execution.cuda_memory import cap_memory, read_memory, reset_readings
from membench.models.resnet import imagenet_resnet
from membench.schedule import Schedule, SubBatches
from membench.step import build_step, plan, simulated_step
from membench.training_step import TrainingStep
from membench.units import MIB
from membench.workload import Workload
from tests.contract.networks import GRADIENT_BOUND, NETWORKS, Reference, reference_of, run_step, workload
from tests.contract.test_strategies import EACH_NETWORK, VARIANTS

pytestmark = pytest.mark.cuda
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products; read when cuBLAS starts
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

PEAK_TOLERANCE = 0.005
TIME_TOLERANCE = 0.10


@pytest.fixture(scope="module", autouse=True)
def deterministic_kernels() -> Iterator[None]:
    """Kernels that give the same bits each time where there are any; the others warn and are compared loosely."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    yield
    torch.use_deterministic_algorithms(False)


@cache
def cost() -> MeasuredCost:
    return MeasuredCost(torch.device("cuda", torch.cuda.current_device()))


@cache
def reference(name: str) -> tuple[Reference, bool]:
    """Return a network on the GPU and whether eager PyTorch gives the same bits twice."""
    case = reference_of(workload(NETWORKS[name], name, device="cuda"))
    return case, not case.results.difference(reference_of(case.work).results)


def step_of(case: Reference, variant: str, *, cuda_graph: bool = False) -> TrainingStep:
    schedule = plan(case.captured.graph, VARIANTS[variant], cost(), None)
    backend = CudaBackend(schedule, cost().device)
    return TrainingStep(case.work, case.captured, schedule, backend, cuda_graph=cuda_graph)


def check_same(case: Reference, step: TrainingStep, *, exact: bool) -> None:
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    rounding = step.schedule.rounding
    if exact:
        case.results.check(results, rounding=rounding)
        return
    torch.testing.assert_close(results.loss, case.results.loss)
    if rounding:
        assert case.results.gradient_error(results) <= 1e-3 + GRADIENT_BOUND * rounding
        return
    for name, gradient in case.results.gradients.items():
        torch.testing.assert_close(results.gradients[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("network", EACH_NETWORK)
def test_gradients_and_statistics_equal_eagers(network: str, variant: str) -> None:
    case, exact = reference(network)
    step = step_of(case, variant)
    for _ in range(2):
        check_same(case, step, exact=exact)
    step.close()


@pytest.mark.parametrize("network", ["resnet18", "alexnet"])
@pytest.mark.parametrize("variant", ["eager", "layrub_hybrid", "vdnn_all"])
def test_a_replayed_step_equals_eagers(network: str, variant: str) -> None:
    """The first call runs by itself, the second captures, the third only replays."""
    case, exact = reference(network)
    step = step_of(case, variant, cuda_graph=True)
    for _ in range(3):
        check_same(case, step, exact=exact)
    step.close()


@cache
def resnet50() -> Workload:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(1000, (32,), device="cuda")
    module = imagenet_resnet(50).to("cuda")
    return Workload("resnet50", module, torch.nn.functional.cross_entropy, (images,), (labels,))


def schedule_of(variant: str) -> Schedule:
    return plan(capture(resnet50()).graph, VARIANTS[variant], cost(), None)


def large_step(variant: str) -> TrainingStep:
    schedule = schedule_of(variant)
    return TrainingStep(resnet50(), capture(resnet50()), schedule, CudaBackend(schedule, cost().device))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_predicted_peak_is_the_allocators(variant: str) -> None:
    step = large_step(variant)
    measured = step.measure()
    step.close()
    assert measured.peak_bytes == pytest.approx(step.predicted_peak_bytes, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("variant", ["eager", "layrub_hybrid", "vdnn_all"])
def test_the_predicted_peak_of_a_replayed_step_is_the_allocators(variant: str) -> None:
    step = build_step(Captures(resnet50()), VARIANTS[variant], cost(), None, cuda_graph=True)
    measured = step.measure()
    step.close()
    assert measured.peak_bytes == pytest.approx(step.predicted_peak_bytes, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("variant", ["eager", "layrub_hybrid", "vdnn_all"])
def test_the_predicted_step_time_is_the_measured_one(variant: str) -> None:
    step = large_step(variant)
    predicted_s = simulated_step((SubBatches(step.schedule),), cost()).step_time_s
    measured = step.measure()
    step.close()
    assert measured.step_time_s == pytest.approx(predicted_s, rel=TIME_TOLERANCE)


def test_memory_is_flat_from_the_second_iteration_on() -> None:
    step = large_step("layrub_hybrid")
    device = cost().device

    def held() -> tuple[int, int]:
        step(resnet50().inputs, resnet50().targets)
        resnet50().module.zero_grad(set_to_none=True)
        torch.cuda.synchronize(device)
        assert isinstance(step.backend, CudaBackend)
        return torch.cuda.memory_allocated(device), step.backend.pinned.size_bytes

    held()
    assert len({held() for _ in range(20)}) == 1
    step.close()


def test_copies_overlap_with_computation() -> None:
    step = large_step("layrub_hybrid")
    measured = step.measure()
    step.close()
    assert measured.exposed_transfer_s < measured.copy_time_s


def test_a_cap_is_a_real_limit() -> None:
    device = cost().device
    reset_readings(device)
    reserved_bytes = read_memory(device).reserved_bytes
    cap_memory(reserved_bytes + 64 * MIB, device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 * MIB + reserved_bytes, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
