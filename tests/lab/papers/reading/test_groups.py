"""A paper's vocabulary on the command line: Hydra composes the configurations that a reproduction runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose

from membench.core.configuration import ROOT
from membench.core.record import Configuration
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.lab.papers.reading.groups import file_of, name_of, names_of, write_groups
from membench.lab.papers.reading.loader import known_papers, load_paper
from membench.sweep.composition import cell_configuration, hydra_composition

PAPERS = {name: load_paper(ROOT / "experiments" / name) for name in known_papers(ROOT / "experiments")}
LAYRUB = PAPERS["layrub"]


def _by_hydra(paper: Paper, cells: list[PaperCell], folder: Path) -> Iterator[Configuration]:
    write_groups(paper, folder)
    with hydra_composition(folder):
        for cell in cells:
            chosen = {"model": cell.model, "strategy": cell.system, "device": cell.device}
            words = [f'{group}="{file_of(paper, name)}"' for group, name in chosen.items()]
            limits = {"batch_size": cell.batch_size, "budget": cell.budget}
            words += [f'{name}="{value}"' for name, value in limits.items() if isinstance(value, str)]
            words += [f"{name}={value}" for name, value in limits.items() if isinstance(value, int)]
            yield cell_configuration(compose("config", words))


def _assert_equal(paper: Paper, cells: list[PaperCell], folder: Path) -> None:
    expected = compose_cells(paper, cells)
    for cell, composed in zip(cells, _by_hydra(paper, cells, folder), strict=True):
        assert composed == expected[cell], cell


def _without_repetition(paper: Paper) -> list[PaperCell]:
    """Return cells in which each network, method, device, batch size and budget of a paper's cells occurs."""
    seen: set[object] = set()
    chosen = []
    for cell in needed_cells(paper):
        parts = {*enumerate(vars(cell).values())}
        if not parts <= seen:
            seen |= parts
            chosen.append(cell)
    return chosen


def test_composed_cells_are_those_of_the_reproduction(tmp_path: Path) -> None:
    """With a framework of the network's own, a cluster, and a budget that is not the method's."""
    cells = [
        PaperCell("LSTM-RNN", "Caffe", "NVIDIA Tesla K40M"),
        PaperCell("ResNet-50", "Layrub-distributed (Caffe-MPI), 2 nodes", "2 nodes x NVIDIA Tesla K40M", 32),
        PaperCell("WRN-28-10", "vDNN(p)", "NVIDIA GeForce GTX TITAN Z (one GPU)", "largest"),
    ]
    _assert_equal(LAYRUB, cells, tmp_path)
    _assert_equal(PAPERS["modnn"], [PaperCell("VGG-16", "moDNN, 20 cores", "4 x NVIDIA K40", budget="6 GB")], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_each_word_of_a_paper_composes_to_what_its_reproduction_runs(name: str, tmp_path: Path) -> None:
    _assert_equal(PAPERS[name], _without_repetition(PAPERS[name]), tmp_path)


def test_words_stand_for_what_the_paper_has() -> None:
    names = names_of(LAYRUB)
    methods = {
        "layrub_hybrid": "Layrub-hybrid",
        "memonger": "MXNet-memonger",
        "network_wide": "Caffe",
        "vDNN(p)": "vDNN(p)",
    }
    networks = {
        "resnet1001": "ResNet-1001",
        "wrn28_10_layrub": "WRN-28-10",
        "wrn28_10": "WRN-28-10",
        "resnet56": "ResNet-56",
    }
    for group, words in {"strategy": methods, "model": networks, "device": {"k40m": "NVIDIA Tesla K40M"}}.items():
        assert {word: name_of(names[group], word) for word in words} == words
    assert name_of(names["strategy"], "rotor") is None
    assert name_of(names["model"], "vgg516") is None
    assert name_of(names_of(PAPERS["vdnn"])["strategy"], "network_wide") == "base(p)"


def test_what_runs_no_step_is_no_method() -> None:
    assert "COO" in PAPERS["epmc"].systems
    assert "COO" not in names_of(PAPERS["epmc"])["strategy"]


def test_a_batch_size_has_the_names_that_the_paper_gives_it(tmp_path: Path) -> None:
    write_groups(LAYRUB, tmp_path)
    with hydra_composition(tmp_path):
        words = [f'model="{file_of(LAYRUB, "AlexNet")}"', "batch_size=extreme"]
        assert cell_configuration(compose("config", words))["batch_size"] == 2100


def test_what_the_command_line_states_counts_before_the_paper(tmp_path: Path) -> None:
    write_groups(LAYRUB, tmp_path)
    chosen = [f'model="{file_of(LAYRUB, "LSTM-RNN")}"', f'strategy="{file_of(LAYRUB, "vDNN(p)")}"']
    device = f'device="{file_of(LAYRUB, "2 nodes x NVIDIA Tesla K40M")}"'
    with hydra_composition(tmp_path):
        papers = compose("config", [*chosen, device])
        own = compose("config", [*chosen, device, "framework=mxnet", "budget=6GB", "cluster=one", "metrics=a.b"])
    assert (papers.framework._target_.rpartition(".")[2], papers.budget) == ("PyTorch", None)
    assert (own.framework._target_.rpartition(".")[2], own.budget, own.metrics) == ("MXNet", "6GB", "a.b")
    assert (papers.cluster.hosts, "hosts" in own.cluster) == (2, False)
