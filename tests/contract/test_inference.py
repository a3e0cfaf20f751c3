"""Inference: under every strategy the output is that of the module to the bit, and the peak is exact."""

import pickle
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.backends.cpu import Chaos
from membench.capture.capture import CapturedStep, Captures, capture
from membench.conformance.networks import workload_of
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, Phase, Role
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.workload import Workload
from membench.planning.checking.validate import validate
from membench.steps.compile import CompiledStep
from membench.steps.plan import plan
from membench.steps.real.as_run import graph_as_run
from membench.steps.real.placement import place_workload
from membench.strategies.base import strategies
from membench.strategies.eager import Eager
from membench.strategies.layrub.strategy import LayrubHybrid
from tests.helpers.devices import DEVICE, allocator_peak_bytes, backend_of
from tests.helpers.emulator.accelerator_schedules import visiting
from tests.helpers.networks.contract import COST, EACH_NETWORK

pytestmark = pytest.mark.accelerator

VARIANTS = {name: strategy() for name, strategy in strategies(Mode.INFERENCE).items()}


@cache
def inference(network: str) -> tuple[Workload, CapturedStep, list[Tensor]]:
    """Return the network in evaluation mode, captured, and what plain PyTorch computes."""
    work = replace(workload_of(network, DEVICE), loss=None, targets=())
    work.module.eval()
    captures = Captures(work)
    graph_as_run(captures, COST, work.batch_size)
    with torch.no_grad():
        return work, captures.at(work.batch_size), tree_leaves(work.module(*work.inputs))


def check(network: str, schedule: Schedule, chaos: Chaos | None) -> None:
    work, captured, expected = inference(network)
    backend = backend_of(schedule, chaos)
    work = place_workload(deepcopy(work), captured, backend)
    step = CompiledStep(work, captured, schedule, backend)
    for ours, theirs in zip(tree_leaves(step(work.inputs)), expected, strict=True):
        assert ours.cpu().numpy().tobytes() == theirs.cpu().numpy().tobytes()
    if chaos is None:
        peak_bytes = allocator_peak_bytes(lambda: step(work.inputs))
        assert schedule.graph.external_bytes + peak_bytes == step.predicted_peak_bytes
    backend.close()


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_the_output_of_the_module_and_the_peak_are_exact(network: str) -> None:
    schedule = plan(inference(network)[1].graph, Eager(), COST, None)
    check(network, schedule, chaos=None)
    check(network, schedule, Chaos(seed=3, longest_delay_s=0.0005))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_strategy_for_inference_is_exact(variant: str) -> None:
    schedule = plan(inference("resnet18")[1].graph, VARIANTS[variant], COST, None)
    check("resnet18", schedule, chaos=None)
    check("resnet18", schedule, Chaos(seed=3, longest_delay_s=0.0005))
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_weights_may_live_on_the_host_and_visit(network: str) -> None:
    schedule = visiting(inference(network)[1].graph)
    validate(schedule)
    assert schedule.graph.external_bytes == schedule.graph.overhead_bytes  # what libraries keep on a GPU
    check(network, schedule, chaos=None)
    check(network, schedule, Chaos(seed=3, longest_delay_s=0.0005))


def test_a_weight_that_the_caller_changes_or_replaces_is_seen() -> None:
    module, images = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    work = Workload("linear", module, None, (images,))
    captured = capture(work)
    schedule = visiting(captured.graph)
    step = CompiledStep(work, captured, schedule, backend_of(schedule))
    for change in (lambda: None, lambda: module.weight.data.mul_(2), lambda: module.bias.data.set_(torch.ones(2))):
        change()
        for batch in (images, images + 1):
            if DEVICE.type == "cuda":  # whose sums have another order than the host's
                torch.testing.assert_close(step(batch).cpu(), module(batch))
            else:
                assert step(batch).equal(module(batch))


def test_a_strategy_for_training_alone_is_refused() -> None:
    with pytest.raises(
        UnsupportedStrategy, match="'layrub_hybrid' does not schedule steps of inference; choose one of .*eager"
    ):
        plan(inference("resnet18")[1].graph, LayrubHybrid(), COST, None)


def test_a_graph_of_inference_has_a_forward_pass_and_an_output_alone() -> None:
    _, captured, _ = inference("resnet18")
    graph = captured.graph
    assert {task.phase for task in graph.tasks} == {Phase.FORWARD}
    assert graph.loss is None and graph.gradients == () and captured.targets == ()
    assert [block.name for block in graph.blocks if block.role is Role.OUTPUT] == ["fc:addmm"]


class Answers(nn.Module):
    """Returns a structure, with an input in it."""

    def forward(self, images: Tensor) -> dict[str, object]:
        return {"sum": images.sum(), "parts": (images, images.exp()[:1]), "kind": "answer"}


def test_the_output_has_the_structure_that_the_module_returns() -> None:
    images = torch.randn(2, 3)
    answer = membench.compile(Answers(), None, (images, ()))(images)
    assert answer["kind"] == "answer" and answer["parts"][0].equal(images)
    assert answer["sum"].equal(images.sum()) and answer["parts"][1].equal(images.exp()[:1])
