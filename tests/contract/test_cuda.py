"""What a GPU of CUDA's or ROCm's has: graphs, a cap, real time, large networks. Some of it an emulated one has, too."""

import copy
from functools import cache

import pytest
import torch
from torchvision.models import alexnet

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.accelerator_memory import cap_memory, read_memory, reset_readings
from membench.backends.real import products_in
from membench.capture.capture import Captures, capture
from membench.cli.measure import cell_of, parse
from membench.conformance.networks import CLASSES, NETWORKS
from membench.conformance.steps import check_exact, has_parallel_tasks
from membench.core.graph.precision import Precision
from membench.core.graph.schedule import RepeatedSchedule, Schedule
from membench.core.record import Outcome
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.data.digits import digits
from membench.execution.measurement import accelerator_peak_bytes
from membench.lab.training.loop import train
from membench.lab.training.recipe import Recipe
from membench.models.digits import digits_cnn
from membench.models.resnet import imagenet_resnet
from membench.steps.compile import build_step
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.request import StepRequest
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import find_strategy
from membench.strategies.modnn.strategy import Modnn
from membench.sweep.cells.measured import PEAK_TOLERANCE
from membench.sweep.processes.worker import Workers
from tests.helpers.devices import DEVICE
from tests.helpers.networks.contract import COST, reference
from tests.helpers.steps.variants import VARIANTS

pytestmark = pytest.mark.cuda
TIME_TOLERANCE = 0.10


@pytest.mark.parametrize("network", ["resnet18", "alexnet"])
@pytest.mark.parametrize("variant", ["eager", "layrub_hybrid", "vdnn_all"])
def test_a_replayed_step_gives_the_results_of_eager(network: str, variant: str) -> None:
    """The first call runs by itself, the second captures, the third only replays."""
    case = reference(network)
    schedule = plan(case.captured.graph, VARIANTS[variant], COST, None)
    pool = torch.cuda.graph_pool_handle()
    step = CompiledStep(case.work, case.captured, schedule, AcceleratorBackend(schedule, DEVICE), graph_pool=pool)
    for _ in range(3):
        check_exact(case, step)
    step.close()


@cache
def resnet50() -> Workload:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 3, 224, 224).to(DEVICE), torch.randint(1000, (32,)).to(DEVICE)
    module = imagenet_resnet(50).to(DEVICE)
    return Workload("resnet50", module, torch.nn.functional.cross_entropy, (images,), (labels,))


def schedule_of(variant: str) -> Schedule:
    return plan(capture(resnet50()).graph, VARIANTS[variant], COST, None)


def large_step(variant: str) -> CompiledStep:
    schedule = schedule_of(variant)
    return CompiledStep(resnet50(), capture(resnet50()), schedule, AcceleratorBackend(schedule, DEVICE))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_predicted_peak_is_measured_by_the_allocator(variant: str) -> None:
    step = large_step(variant)
    measured = step.measure()
    step.close()
    if has_parallel_tasks(step.schedule):  # the allocator's counter does not wait for the other stream
        assert measured.peak_bytes <= step.predicted_peak_bytes * (1 + PEAK_TOLERANCE)
    else:
        assert measured.peak_bytes == pytest.approx(step.predicted_peak_bytes, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("variant", ["eager", "layrub_hybrid", "vdnn_all"])
def test_the_predicted_peak_of_a_replayed_step_is_measured_by_the_allocator(variant: str) -> None:
    step = build_step(Captures(resnet50()), COST, StepRequest(VARIANTS[variant], cuda_graph=True))
    measured = step.measure()
    step.close()
    assert measured.peak_bytes == pytest.approx(step.predicted_peak_bytes, rel=PEAK_TOLERANCE)


@pytest.mark.parametrize("variant", ["eager", "layrub_hybrid", "vdnn_all"])
def test_the_predicted_step_time_is_the_measured_one(variant: str) -> None:
    step = large_step(variant)
    predicted_s = simulated_step((RepeatedSchedule(step.schedule),), COST).step_time_s
    measured = step.measure()
    step.close()
    assert measured.step_time_s == pytest.approx(predicted_s, rel=TIME_TOLERANCE)


def test_memory_is_flat_from_the_second_iteration_on() -> None:
    step = large_step("layrub_hybrid")
    device = DEVICE

    def held() -> tuple[int, int]:
        step(resnet50().inputs, resnet50().targets)
        resnet50().module.zero_grad(set_to_none=True)
        torch.accelerator.synchronize(device)
        assert isinstance(step.backend, AcceleratorBackend)
        return torch.accelerator.memory_allocated(device), step.backend.pinned.size_bytes

    held()
    assert len({held() for _ in range(20)}) == 1
    step.close()


def test_copies_overlap_with_computation() -> None:
    step = large_step("layrub_hybrid")
    measured = step.measure()
    step.close()
    assert measured.exposed_transfer_s < measured.copy_time_s


def test_a_cap_is_a_real_limit() -> None:
    device = DEVICE
    reset_readings(device)
    reserved_bytes = read_memory(device).reserved_bytes
    cap_memory(reserved_bytes + 64 * MIB, device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 * MIB + reserved_bytes, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@pytest.mark.emulated
@pytest.mark.parametrize(("strategy", "budget_bytes"), [("mmcnn", 150 * MIB), ("vdnn_inference", None)])
def test_weights_that_live_on_the_host_take_no_memory_of_the_gpu(strategy: str, budget_bytes: int | None) -> None:
    torch.manual_seed(0)
    module, images = alexnet().eval(), torch.randn(1, 3, 224, 224)
    expected = module(images)
    work = Workload("alexnet", module, None, (images,))
    step = build_step(Captures(work, DEVICE), COST, StepRequest(find_strategy(strategy)(), budget_bytes))
    torch.testing.assert_close(step(images).cpu(), expected, rtol=1e-2, atol=1e-3)
    peak_bytes = accelerator_peak_bytes(lambda: step(images), DEVICE)
    step.close()
    assert peak_bytes <= step.predicted_peak_bytes * (1 + PEAK_TOLERANCE)
    assert peak_bytes < sum(weight.nbytes for weight in module.parameters())


@pytest.mark.parametrize("cuda_graph", [pytest.param(False, marks=pytest.mark.emulated), True])
def test_weights_that_live_on_the_host_are_trained_there(cuda_graph: bool) -> None:
    """Three steps of descent, in micro-batches of two sizes, compared with PyTorch on the GPU."""
    torch.manual_seed(0)
    module = NETWORKS["resnet50"].build().eval()
    plain = copy.deepcopy(module).to(DEVICE)
    images, labels = torch.randn(5, 3, 32, 32), torch.randint(CLASSES, (5,))
    work = Workload("resnet50", module, torch.nn.functional.cross_entropy, (images,), (labels,))
    step = build_step(
        Captures(work, DEVICE), COST, StepRequest(Modnn(offload_weights=True), micro_batch=3, cuda_graph=cuda_graph)
    )
    batch = (*step.workload.inputs, *step.workload.targets)
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (module, plain)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with products_in(Precision.FP32):  # TF32 rounds more than three steps may differ by
            loss = step(*batch)
            expected = torch.nn.functional.cross_entropy(plain(batch[0]), batch[1])
            expected.backward()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-3, atol=1e-3)
        for optimizer in optimizers:
            optimizer.step()
    step.close()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert ours.device.type == "cpu"
        torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.emulated
def test_a_network_whose_weights_live_on_the_host_is_tested_between_epochs() -> None:
    recipe = Recipe(epochs=1, batch_size=64, learning_rate=0.05, momentum=0.9, weight_decay=0.0, seed=0)
    torch.manual_seed(0)
    [epoch] = train(
        digits_cnn(),
        torch.nn.functional.cross_entropy,
        digits(),
        recipe,
        strategy=Modnn(offload_weights=True),
        backend=DEVICE.type,
    )
    assert epoch.test_accuracy > 0.5


def test_a_budget_below_what_libraries_keep_by_themselves_can_be_kept() -> None:
    cell = cell_of(parse(["budget=5 MB"]), "alexnet_deploy", 1, "mmcnn")
    with Workers(time_limit_s=300) as workers:
        record = workers.run(cell)
    assert record.outcome is Outcome.OK, record.reason
    assert record.metrics["peak_memory_bytes"] <= 5 * MIB * (1 + PEAK_TOLERANCE)


def test_the_graphs_of_two_micro_batch_sizes_share_their_memory() -> None:
    device = DEVICE
    module = imagenet_resnet(18).to(device)

    def reserved_bytes(batch_size: int) -> int:
        images = torch.randn(batch_size, 3, 112, 112, device=device)
        labels = torch.randint(1000, (batch_size,), device=device)
        work = Workload("resnet18", module, torch.nn.functional.cross_entropy, (images,), (labels,))
        step = build_step(Captures(work), COST, StepRequest(find_strategy("eager")(), micro_batch=9, cuda_graph=True))
        for _ in range(2):
            module.zero_grad(set_to_none=True)
            step(images, labels)
        torch.cuda.empty_cache()
        held_bytes = torch.cuda.memory_reserved(device)
        step.close()
        torch.cuda.empty_cache()
        return held_bytes

    nine_twice, nine_and_seven = reserved_bytes(18), reserved_bytes(16)
    assert nine_and_seven < 1.1 * nine_twice
