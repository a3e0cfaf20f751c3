"""moDNN's paper: rows that are judged, and their cells."""

from membench.papers.experiment import Answer, Experiment
from membench.papers.loader import load_paper
from membench.papers.results import needed_cells
from tests.helpers.papers import EXPERIMENTS

MODNN = load_paper(EXPERIMENTS / "modnn")
NETWORKS = {"VGG-16", "VGG-19", "VGG-101", "ResNet-34", "ResNet-152", "FCN"}


def _experiment(name: str) -> Experiment:
    return next(experiment for experiment in MODNN.experiments if experiment.name == name)


def _answer(claim_id: str) -> Answer:
    [answer] = [
        answer
        for experiment in MODNN.experiments
        for row, answer in experiment.rows
        if row.claim_id == claim_id
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
        system: {(cell.model, cell.budget) for cell in cells if cell.system == system}
        for system in ("moDNN", "vDNN+")
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
