"""What would make a step fit: each change is the prediction of the changed step, and combinations suffice."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from threading import RLock
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.advice.device.advice import Lever
from membench.advice.device.changes import AS_IT_IS, Change, Changes, Kind, ModuleChanges, are_compatible, changes_of
from membench.advice.device.levers import Levers
from membench.advice.device.planning import Target, plain_numbers
from membench.advice.device.processes import Planners
from membench.advice.device.programs import Programs
from membench.advice.pool.work import Work
from membench.advice.pool.workers import Urgency
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.hardware.device import DeviceProfile, as_device
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.cost.roofline import RooflineCost
from membench.planning.rewrites.micro_batch import GraphAt

BATCH = 8
CARD = "rtx3090"
ADAMW = WeightUpdate(torch.optim.AdamW)
OF_UPDATE = ("update in the backward pass", "states in 8 bits")
CHANGED = {
    "fused update": {"optimizer": partial(torch.optim.AdamW, fused=True)},
    "update in the backward pass": {"optimizer": WeightUpdate(torch.optim.AdamW, in_backward=True)},
    "states in 8 bits": {"optimizer": "adamw8bit"},
    "torch.compile": {"kernels": "inductor"},
    "weights in bf16": {"precision": "bf16"},
}


def network(width: int = 512) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 512, device="meta"), torch.randn(BATCH, 512, device="meta")


class Here(Planners):
    """Planners that run their jobs in this process, which need not be started."""

    def __init__(self, programs: Programs) -> None:
        self.capturing = RLock()
        self._programs = programs

    def graph(self, batch_size: int, size: int, program: Changes = AS_IT_IS) -> TaskGraph:
        with self.capturing:
            return self._programs.graphs(batch_size, program).graph_at(size)

    def run(
        self,
        job: Callable[[GraphAt], Any],
        batch_size: int,
        urgency: Urgency = Urgency.METHOD,
        program: Changes = AS_IT_IS,
    ) -> Any:
        assert urgency is Urgency.LEVER
        return job(lambda size: self.graph(batch_size, size, program))


def step_of(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Workload:
    inputs, targets = batch
    return Workload("net", module, nn.functional.mse_loss, (inputs,), (targets,))


def search(
    budget_bytes: int | None, *given: Change, step: Workload | None = None, card: DeviceProfile | None = None
) -> tuple[Levers, tuple[Lever, ...]]:
    step, card = step or step_of(network(), batch()), card or as_device(CARD)

    def build(names: frozenset[str]) -> Workload:
        raise MembenchError(f"there is no module with {', '.join(names)}")

    framework = configuration.load("framework", "pytorch")
    captured_on = framework.captured_on(card)
    programs = Programs(step, ADAMW, captured_on, ModuleChanges(given, build), card.allocator)
    target = Target(card, RooflineCost(card, framework.efficiency), budget_bytes, programs.update(AS_IT_IS))
    planners = Here(programs)
    size = step.batch_size
    plain = plain_numbers(lambda at: planners.graph(size, at), size, target)
    with Work(32, progress=False) as work:
        levers = Levers(work, planners, programs, size, target, plain)
        return levers, levers.found()


def found(budget_bytes: int, *given: Change) -> tuple[Lever, ...]:
    return search(budget_bytes, *given)[1]


def peak_bytes(changed: dict[str, object]) -> int:
    step = (network(), nn.functional.mse_loss, batch())
    arguments = {"device": CARD, "optimizer": "adamw", **changed}
    return membench.predict(*step, **arguments).allocated_bytes  # type: ignore[arg-type]


def test_each_is_the_prediction_of_the_changed_step() -> None:
    levers = found(11 * MIB)
    assert {lever.names for lever in levers} == {(name,) for name in CHANGED}  # two of them suffice
    for lever in levers:
        assert lever.peak_bytes == peak_bytes(CHANGED[lever.names[0]])
        assert lever.fits == (lever.peak_bytes <= 11 * MIB)
        assert lever.is_exact == (lever.names[0] in ("fused update", "update in the backward pass"))
    fits = [lever.fits for lever in levers]
    assert fits == sorted(fits, reverse=True) and sum(fits) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget_mib", "together"),
    [
        (7, {("states in 8 bits", "weights in bf16")}),
        (8, {(name, "weights in bf16") for name in ("update in the backward pass", "states in 8 bits")} | {OF_UPDATE}),
        (5, {("update in the backward pass", "states in 8 bits", "weights in bf16")}),
        (1, set()),
    ],
)
def test_the_smallest_combinations_that_suffice_are_named(budget_mib: float, together: set[tuple[str, ...]]) -> None:
    levers = found(int(budget_mib * MIB))
    assert {lever.names for lever in levers if len(lever.names) > 1} == together
    assert all(lever.fits for lever in levers if len(lever.names) > 1)
    both = {"precision": "bf16", "optimizer": WeightUpdate(torch.optim.AdamW, in_backward=True)}
    for lever in levers:
        if lever.names == ("update in the backward pass", "weights in bf16"):
            assert lever.peak_bytes == peak_bytes(both)
            assert lever.options == ("optimizer.in_backward=true", "precision=bf16")


@pytest.mark.slow
def test_a_change_that_cannot_suffice_is_not_captured() -> None:
    checkpointing = Change("checkpointing", Kind.CHECKPOINTING, (), "", is_exact=True)
    adapters = Change("adapters", Kind.ADAPTERS, (), "", keeps_weights=True)
    lever = next(each for each in found(11 * MIB, checkpointing) if each.names == ("checkpointing",))
    assert lever.step_time_s is None and not lever.fits
    assert 11 * MIB < lever.peak_bytes <= peak_bytes({})
    (lever,) = (each for each in found(3 * MIB, adapters) if each.names == ("adapters",))
    assert lever.step_time_s is None and lever.peak_bytes == sum(w.nbytes for w in network().parameters())


def test_a_module_that_cannot_be_built_is_not_tried() -> None:
    levers, tried = search(11 * MIB, Change("adapters", Kind.ADAPTERS, (), ""))
    assert levers.not_tried() == ("adapters: there is no module with adapters",)
    assert all("adapters" not in lever.names for lever in tried)


@pytest.mark.slow
def test_segments_that_grow_suffice_where_unused_memory_alone_is_too_much() -> None:
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(6)]
        step = step_of(nn.Sequential(*layers), (torch.randn(16, 32, 64, 64), torch.randn(16, 32, 64, 64)))
    inputs, targets = step.inputs[0], step.targets[0]

    def predicted(allocator: str | None) -> membench.Prediction:
        return membench.predict(
            step.module, step.loss, (inputs, targets), device=CARD, optimizer="adamw", allocator=allocator
        )

    default, expandable = predicted(None), predicted("expandable_segments:True")
    assert expandable.allocated_bytes == default.allocated_bytes
    assert expandable.reserved_bytes < default.reserved_bytes
    room_bytes = expandable.reserved_bytes
    card = replace(as_device(CARD), memory_bytes=room_bytes, context_bytes=None)
    (lever,) = (each for each in search(None, step=step, card=card)[1] if "expandable segments" in each.names)
    assert lever.names == ("expandable segments",) and lever.fits and lever.is_exact
    assert lever.options == ("allocator=expandable_segments:True",)
    assert (lever.peak_bytes, lever.step_time_s) == (default.allocated_bytes, default.step_time_s)
    tried = search(default.allocated_bytes - 1, step=step, card=card)[1]  # the tensors alone are too much
    assert not any("expandable segments" in each.names for each in tried if not each.fits)


def test_changes_exclude_each_other_both_ways() -> None:
    work = step_of(network(), batch())
    changes = list(changes_of(work, ADAMW, AllocatorSettings(), is_compiled=False))
    assert [change.name for change in changes] == ["expandable segments", *CHANGED, "micro-batches of 1"]
    for one, other in permutations(changes, 2):
        assert are_compatible((one, other)) == are_compatible((other, one))
    segments, fused, backward, states = changes[:4]
    assert all(are_compatible((segments, other)) for other in changes[1:])
    assert not are_compatible((fused, backward)) and not are_compatible((fused, states))
    assert are_compatible((backward, states))


def test_what_is_done_already_is_not_offered() -> None:
    work = step_of(network(), batch())
    in_backward = WeightUpdate(partial(torch.optim.SGD, lr=0.1), in_backward=True)
    expandable = AllocatorSettings(expandable_segments=True)
    assert [change.name for change in changes_of(work, in_backward, expandable, is_compiled=True)] == [
        "weights in bf16", "micro-batches of 1"
    ]  # fmt: skip
    weights = [nn.Parameter(torch.zeros(2))]
    held = WeightUpdate(torch.optim.AdamW([{"params": weights}, {"params": [nn.Parameter(torch.zeros(3))]}]))
    assert "fused update" not in [
        change.name for change in changes_of(work, held, AllocatorSettings(), is_compiled=True)
    ]  # of groups with options
    held = WeightUpdate(torch.optim.AdamW(weights, lr=0.3))
    (fused,) = (
        change
        for change in changes_of(work, held, AllocatorSettings(), is_compiled=True)
        if change.name == "fused update"
    )
    assert fused.update is not None and fused.update(held).optimizer.keywords["lr"] == 0.3  # type: ignore[union-attr]
