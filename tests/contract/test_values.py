"""Sizes that depend on values: a step captured with a real batch has its sizes, and gives its results."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import membench
from membench.backends.cpu import CpuBackend
from membench.capture.capture import capture
from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.arguments import call_with
from membench.core.step.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.pytorch import PyTorch
from tests.helpers.planning.costs import UnitCost

COST = UnitCost()

EDGES = torch.tensor([[0, 1, 2, 3, 3, 4, 5, 5, 2], [1, 2, 0, 4, 3, 0, 5, 1, 2]])
"""With three that lead to their own node, which GCN and GAT replace."""


class Masked(nn.Module):
    """Selects rows by a mask and by what it computes, and loops as often as a tensor says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, rows: Tensor, mask: Tensor, times: Tensor) -> Tensor:
        chosen = self.first(rows[mask]).relu()
        for _ in range(int(times.item())):
            chosen = chosen + 1
        above = chosen[(chosen.sum(1) > chosen.sum(1).mean()).nonzero().squeeze(1)]
        above[above > 2] = 2.0
        return self.second(above)


class Convolutions(nn.Module):
    """Two layers of a graph network."""

    def __init__(self, kind: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = kind(4, 8), kind(8, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(nodes, edges).relu(), edges)
        return hidden


class Backbone(nn.Sequential):
    """Features of images, with a quarter of their width and height."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.out_channels = 8


def detector(kind: str) -> nn.Module:
    sizes: dict[str, Any] = {"min_size": 32, "max_size": 48, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    anchors = AnchorGenerator(((8, 16),), ((0.5, 1.0),))
    if kind == "retinanet":
        return RetinaNet(Backbone(), 3, anchor_generator=anchors, score_thresh=0.0, **sizes)
    pool = MultiScaleRoIAlign(["0"], 3, 2)
    return FasterRCNN(
        Backbone(), 3, rpn_anchor_generator=anchors, box_roi_pool=pool, rpn_post_nms_top_n_test=20, **sizes
    )


def total(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def case(name: str, *, trains: bool) -> Workload:
    torch.manual_seed(0)
    if name in ("fasterrcnn", "retinanet"):
        images = [torch.rand(3, 32, 40), torch.rand(3, 40, 32)]
        boxes = {
            "boxes": torch.tensor([[2.0, 3.0, 12.0, 13.0], [8.0, 8.0, 20.0, 30.0]]),
            "labels": torch.tensor([1, 2]),
        }
        inputs = (images, [boxes, boxes]) if trains else (images,)
        return Workload(name, detector(name).train(trains), total if trains else None, inputs)
    if name == "masked":
        mask = torch.tensor([True, False, True, True, False, True, True, True])
        module, inputs = Masked(), (torch.randn(8, 4), mask, torch.tensor(2))
    else:
        module, inputs = (
            Convolutions({"gcn": GCNConv, "gat": GATConv, "sage": SAGEConv}[name]),
            (torch.randn(6, 4), EDGES),
        )
    return Workload(name, module.train(trains), (lambda output: output.square().mean()) if trains else None, inputs)


CASES = ("masked", "gcn", "gat", pytest.param("fasterrcnn", marks=pytest.mark.slow), "retinanet")


def plain(work: Workload) -> tuple[list[Any], list[Tensor | None]]:
    """Return what plain PyTorch computes, and gradients."""
    work.module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    with torch.set_grad_enabled(work.trains):
        output = work.output()
        if work.loss is None:
            return tree_leaves(output), []
        loss = call_with(work.loss, work.targets, output)
        loss.backward()
    return [loss.detach()], [weight.grad for weight in work.module.parameters()]


@pytest.mark.parametrize("strategy", [PyTorch(), Eager()], ids=["pytorch", "eager"])
@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", CASES)
def test_the_captured_step_gives_the_batch_its_results(name: str, trains: bool, strategy: Strategy) -> None:
    work = case(name, trains=trains)
    torch.manual_seed(1)
    captured = capture(work, uses_values=True)
    assert captured.graph.depends_on_values
    expected, gradients = plain(work)
    work.module.zero_grad(set_to_none=True)
    schedule = plan(captured.graph, strategy, COST, None)
    step = CompiledStep(work, captured, schedule, CpuBackend(schedule.graph))
    torch.manual_seed(1)
    for ours, theirs in zip(tree_leaves(step(work.inputs, work.targets)), expected, strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    for weight, gradient in zip(work.module.parameters(), gradients, strict=False):
        assert gradient is None or (weight.grad is not None and weight.grad.equal(gradient))
    step.close()


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_the_peak_is_that_of_plain_pytorch(name: str) -> None:
    work = case(name, trains=False)
    captured = capture(work, uses_values=True)
    with torch.no_grad():
        peak_bytes = cpu_peak_bytes(work.output)
    assert captured.graph.external_bytes + peak_bytes == plan(captured.graph, PyTorch(), COST, None).peak_bytes


@pytest.mark.parametrize("name", [*CASES, "sage"])
def test_a_prediction_states_whether_it_holds_for_its_batch_alone(name: str) -> None:
    work = case(name, trains=True)
    found = membench.predict(work.module, work.loss, (work.inputs, ()), device="a100_80gb")
    assert found.depends_on_values is (name != "sage") and found.step_time_s > 0
    plain(work)  # the module holds no tensor of the capture


def test_other_values_have_other_sizes() -> None:
    work = case("masked", trains=False)
    rows, mask, times = work.inputs  # type: ignore[misc]
    fewer = replace(work, inputs=(rows, mask & (torch.arange(8) < 3), times))
    both = [membench.predict(each.module, None, (each.inputs, ()), device="t4") for each in (work, fewer)]
    assert both[0].parts_bytes["activations"] > both[1].parts_bytes.get("activations", 0)


@pytest.mark.parametrize("name", ["masked", "gcn"])
def test_without_values_and_in_a_step_that_runs_it_is_refused(name: str) -> None:
    work = case(name, trains=True)
    without = tuple(each.to("meta") for each in work.inputs)
    for refused in (
        lambda: membench.predict(work.module, work.loss, (without, ()), device="a100_80gb"),
        lambda: membench.compile(work.module, work.loss, (work.inputs, ()), backend="cpu"),
    ):
        with pytest.raises(UnsupportedModel, match="depends on the values of tensors"):
            refused()
