"""Steps that update their weights with torch's optimizers: what they change, keep, free and refuse."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.capture.capture import Captures
from membench.core import configuration
from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.graph.task_graph import Phase
from membench.core.step.optimizer import Gradients, WeightUpdate, made_optimizer
from membench.core.step.workload import Workload
from membench.planning.rewrites.update import updated_workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.eager import Eager
from membench.strategies.modnn.strategy import Modnn
from tests.helpers.networks.contract import COST
from tests.helpers.steps.updates import MAKERS, WAYS, first_difference, plain_steps, run_steps

LOSS = nn.CrossEntropyLoss()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, 3, 8, 8), torch.randint(10, (4,))


def workload() -> Workload:
    images, labels = batch()
    return Workload("small", network(), LOSS, (images,), (labels,))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("by_name", [True, False])
def test_a_name_stands_for_torchs_optimizer_with_its_defaults(name: str, by_name: bool) -> None:
    work = workload()
    expected = plain_steps(work, MAKERS[name])
    optimizer = name if by_name else MAKERS[name](work.module.parameters())
    step = membench.compile(work.module, LOSS, (work.inputs, work.targets), optimizer=optimizer)
    run_steps(work, step)
    assert not first_difference(work.module, expected)


@pytest.mark.parametrize("name", ["adafactor", "muon", "lion", "adamw8bit"])
def test_names_of_other_optimizers_run_too(name: str) -> None:
    if name in ("lion", "adamw8bit"):
        pytest.importorskip("bitsandbytes")
    work = workload()
    expected = plain_steps(work, partial(made_optimizer, configuration.load("optimizer", name)))
    step = membench.compile(work.module, LOSS, (work.inputs, work.targets), optimizer=name)
    run_steps(work, step)
    assert not first_difference(work.module, expected)
    assert step.measure().peak_bytes == step.predicted_peak_bytes


def test_a_schedule_of_learning_rates_applies() -> None:
    ours, theirs = network(), network()
    images, labels = batch()
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (ours, theirs)]
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in optimizers]
    step = membench.compile(ours, LOSS, (images, labels), optimizer=optimizers[0])
    for _ in range(3):
        step(images, labels)
        schedules[0].step()
        LOSS(theirs(images), labels).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        schedules[1].step()
    assert not first_difference(ours, theirs)


def test_weights_that_the_optimizer_leaves_out_keep_their_gradients() -> None:
    module, other = network(), network()
    images, labels = batch()
    optimizer = torch.optim.Adam(module[4].parameters())
    loss = membench.compile(module, LOSS, (images, labels), optimizer=optimizer)(images, labels)
    expected = LOSS(other(images), labels)
    expected.backward()
    assert torch.equal(loss, expected)
    for ours, theirs in zip(module[0].parameters(), other[0].parameters(), strict=True):
        assert torch.equal(ours, theirs) and torch.equal(ours.grad, theirs.grad)
    assert all(weight.grad is None for weight in module[4].parameters())
    assert not torch.equal(module[4].weight, other[4].weight)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_kept_gradients_are_zeroed_before_the_next_step(micro_batch: int | None) -> None:
    work = workload()
    images, labels = batch()
    twin = deepcopy(work.module)
    by = WeightUpdate(MAKERS["momentum"], gradients=Gradients.KEPT)
    captures = Captures(updated_workload(work, by))
    step = build_step(captures, COST, StepRequest(Eager(), micro_batch=micro_batch, optimizer=by))
    assert step.measure().peak_bytes == step.predicted_peak_bytes
    optimizer = MAKERS["momentum"](twin.parameters())
    parts = [slice(None)] if micro_batch is None else [slice(0, 2), slice(2, 4)]
    for _ in range(3):
        step(images, labels)
        optimizer.zero_grad(set_to_none=False)
        for part in parts:
            (LOSS(twin(images[part]), labels[part]) / len(parts)).backward()
        optimizer.step()
        pairs = zip(work.module.parameters(), twin.parameters(), strict=True)
        assert all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)
    assert not first_difference(work.module, twin)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("micro_batch", [None, 2, 3])
def test_measuring_changes_nothing_and_finds_the_predicted_peak(name: str, micro_batch: int | None) -> None:
    work = workload()
    optimizer = MAKERS[name](work.module.parameters())
    step = membench.compile(
        work.module, LOSS, (work.inputs, work.targets), optimizer=optimizer, micro_batch=micro_batch
    )
    run_steps(work, step)
    before, states = deepcopy(work.module), deepcopy(optimizer.state_dict())
    measured = step.measure()
    assert measured.peak_bytes == step.predicted_peak_bytes
    assert not first_difference(work.module, before)
    after = optimizer.state_dict()
    assert after["param_groups"] == states["param_groups"]
    for number, state in states["state"].items():
        assert all(torch.equal(after["state"][number][key], value) for key, value in state.items())


def test_a_timeline_contains_the_update_and_changes_no_weight() -> None:
    work = workload()
    step = build_step(Captures(work), COST, StepRequest(Eager(), optimizer=WeightUpdate(torch.optim.AdamW)))
    before = deepcopy(work.module.state_dict())
    timeline = step.timeline()
    updates = [task.index for task in step.schedule.graph.tasks if task.phase is Phase.UPDATE]
    instructions = step.schedule.instructions
    spans = [s for s in timeline.spans if getattr(instructions[s.instruction], "task", -1) in updates]
    assert len(spans) == len(updates) == 3  # one for each layer with weights
    assert all(span.end_s > span.start_s for span in spans)
    assert all(torch.equal(before[name], weight) for name, weight in work.module.named_parameters())


def test_other_tensors_and_other_places_are_refused() -> None:
    work = workload()
    arguments = (work.module, LOSS, (work.inputs, work.targets))
    foreign = torch.optim.SGD(network().parameters())
    with pytest.raises(MembenchError, match="not weights of the module"):
        membench.compile(*arguments, optimizer=foreign)
    for option in ("in_backward", "ema"):
        by = WeightUpdate(torch.optim.SGD, **{option: True})
        with pytest.raises(MembenchError, match=f"^{option}=True of an optimizer is simulated only"):
            membench.compile(*arguments, optimizer=by)
    with pytest.raises(MembenchError, match="optimizer SGD cannot be made .*learning rate: -1"):
        membench.compile(*arguments, optimizer=partial(torch.optim.SGD, lr=-1))
    with pytest.raises(MembenchError, match="an optimizer is a name, a class of torch.optim, .* not 3"):
        membench.compile(*arguments, optimizer=3)
    with pytest.raises(MembenchError, match="optimizer 'adamz' is not known; did you mean 'adam"):
        membench.compile(*arguments, optimizer="adamz")
    with pytest.raises(UnsupportedStrategy, match="keeps '[04].weight' in host memory"):
        membench.compile(*arguments, strategy=Modnn(offload_weights=True), optimizer="sgd")
    own = torch.optim.SGD(work.module.parameters())
    with pytest.raises(MembenchError, match="a CUDA graph does not contain"):
        build_step(Captures(work), COST, StepRequest(Eager(), optimizer=WeightUpdate(own), cuda_graph=True))
    work.module[4].weight.requires_grad_(False)
    frozen = torch.optim.SGD([work.module[4].weight])
    with pytest.raises(MembenchError, match="no gradient for any weight of the optimizer"):
        membench.compile(*arguments, optimizer=frozen)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_runs_takes_what_makes_an_optimizer(way: str) -> None:
    work = workload()
    make = partial(torch.optim.AdamW, lr=0.1, **WAYS[way])
    expected = plain_steps(work, make)
    step = membench.compile(work.module, LOSS, (work.inputs, work.targets), optimizer=make)
    run_steps(work, step)
    assert not first_difference(work.module, expected)


def test_a_simulated_step_leaves_an_instance_alone() -> None:
    work = workload()
    arguments = (work.module, LOSS, (work.inputs, work.targets))
    before = deepcopy(work.module.state_dict())
    own = torch.optim.AdamW(work.module.parameters(), fused=True)
    weights_bytes = sum(weight.nbytes for weight in work.module.parameters())
    for optimizer, workspace_bytes in ((own, 0), ("adamw", weights_bytes)):
        step = membench.compile(*arguments, optimizer=optimizer, backend="simulated", device="k40m")
        updates = [task for task in step.plan[0].schedule.graph.tasks if task.phase is Phase.UPDATE]
        assert sum(task.workspace_bytes for task in updates) == workspace_bytes
    assert not own.state
    assert all(torch.equal(before[name], value) for name, value in work.module.state_dict().items())
