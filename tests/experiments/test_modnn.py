"""moDNN's paper: rows that are judged, and their cells."""

from dataclasses import replace

import pytest

from experiments.modnn.metrics import sum_metrics
from membench.capture.capture import Captures
from membench.core.configuration import load
from membench.cost.roofline import RooflineCost
from membench.lab.calibrate.waves import read_published
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.experiment import Answer, Experiment, PaperCell
from membench.lab.papers.reading.loader import load_paper
from membench.sweep.cells.model import Model
from tests.helpers.lab.papers import EXPERIMENTS

MODNN = load_paper(EXPERIMENTS / "modnn")
NETWORKS = {"VGG-16", "VGG-19", "VGG-101", "ResNet-34", "ResNet-152", "FCN"}


def _experiment(name: str) -> Experiment:
    return next(experiment for experiment in MODNN.experiments if experiment.name == name)


def _answer(claim_id: str) -> Answer:
    [answer] = [
        answer for experiment in MODNN.experiments for row, answer in experiment.rows if row.claim_id == claim_id
    ]
    return answer


def test_every_figure_from_9_to_19_has_an_experiment() -> None:
    names = {experiment.name for experiment in MODNN.experiments}
    assert {f"figure{number}" for number in range(9, 20)} <= names


def test_averages_cover_the_six_networks_at_the_batch_sizes_of_the_paper() -> None:
    batch_sizes = {name: model["batch_sizes"]["normal"] for name, model in MODNN.models.items()}
    assert batch_sizes == dict.fromkeys(NETWORKS, 256) | {"VGG-101": 128, "FCN": 128}
    for experiment in MODNN.experiments:
        for row, answer in experiment.rows:
            if row.model.startswith("average over the six") and answer.value:
                assert set(answer.value.over["model"]) == NETWORKS


def test_vdnn_plus_meets_modnn_at_every_budget() -> None:
    """Each of the two within a budget, and the other at the same one."""
    cells = [cell for cell in needed_cells(MODNN) if cell.budget and cell.model != "ResNet-34"]
    by_system = {
        system: {(cell.model, cell.budget) for cell in cells if cell.system == system} for system in ("moDNN", "vDNN+")
    }
    assert by_system["moDNN"] == by_system["vDNN+"]
    assert len(by_system["moDNN"]) == 5 * 7


def test_the_ideal_case_has_no_budget() -> None:
    assert {cell.budget for cell in needed_cells(MODNN) if cell.system == "ideal case"} == {None}


def test_bounds_are_those_of_one_image_without_workspace() -> None:
    bound = MODNN.systems["lower bound"]
    assert (bound["micro_batch"], bound["set"]["algorithms"]) == (1, "memory")
    value = _answer("M033").value
    assert value is not None
    assert value.reference == {"system": "lower bound", "metric": "lower_bound_bytes"}


def test_modnn_loads_what_each_of_its_micro_batches_computes_on() -> None:
    loading = {name for name, system in MODNN.systems.items() if system.get("set", {}).get("load_inputs")}
    assert loading == {name for name, system in MODNN.systems.items() if system.get("strategy") == "modnn"}
    value = _answer("M041").value
    assert value is not None
    assert value.cell | value.reference == {"system": "moDNN"}


def test_twenty_cores_add_as_fast_as_the_memory_of_their_host() -> None:
    value = _answer("M066").value
    assert value is not None
    one, twenty = (
        sum_metrics(MODNN, PaperCell("VGG-16", system, "4 x NVIDIA K40"))[value.metric]
        for system in (value.cell["system"], value.reference["system"])
    )
    assert one / twenty == pytest.approx(136.5 / 10)


def test_no_constant_of_the_framework_is_fitted_on_a_row_of_the_paper() -> None:
    """The published throughputs behind `membench fit waves` are of another machine and framework."""
    stated = {row.value for experiment in MODNN.experiments for row, _ in experiment.rows}
    published = {value for row in read_published() for value in row.images_per_s.values()}
    assert published and not stated & published
    assert {remark.where.patterns["claim_id"] for remark in MODNN.fitted} == {("M028",), ("M034",)}


@pytest.mark.parametrize("model", ["vgg16", "resnet34_he"])
def test_one_image_takes_longer_than_its_share_of_a_batch(model: str) -> None:
    """M048: one at a time is slower by more than its algorithms; before, one image was as fast as many."""
    framework = load("framework", "modnn")
    device = load("device", "k40_modnn")
    captures = Captures(Model.named(model).workload(64, seed=0, device="meta"))
    costs = [
        RooflineCost(device, replace(framework.efficiency, half_waves=half_waves))
        for half_waves in (framework.efficiency.half_waves, 0.0)
    ]

    def slowdown(cost: RooflineCost) -> float:
        one, many = (
            sum(cost.algorithms(task)[0].time_s for task in framework.lower(captures.graph_at(size)).tasks)
            for size in (1, 64)
        )
        return 64 * one / many

    assert slowdown(costs[0]) > 1.15 * slowdown(costs[1])
