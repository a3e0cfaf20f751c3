"""The pages of pictures say what is drawn now, and name what of the paper's figures is missing."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from membench.core.configuration import ROOT
from paper_figs import pages
from paper_figs.__main__ import _write_page, figures
from paper_figs.marks import JUDGED, Stated, finish, mark
from paper_figs.overview import paper_title
from paper_figs.pages import PAGE, Drawn, drawn, page, read
from paper_figs.style import use_style

FIGS = ROOT / "paper_figs"
PAPERS = sorted(path.parent.name for path in FIGS.glob("*/figures.yaml"))


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with mpl.rc_context():
        use_style()
        yield
    plt.close("all")


def _pictures(paper: str) -> dict[str, Drawn]:
    scripts = [path.name for path, _ in figures([paper]) if path.with_suffix(".py").is_file() and path.parent != FIGS]
    return {name: drawn(import_module(f"paper_figs.{paper}.{name}").draw()) for name in scripts}


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_is_that_of_the_pictures(paper: str) -> None:
    pictures, described = _pictures(paper), read(paper)
    assert (FIGS / paper / PAGE).read_text() == page(paper, paper_title(paper), pictures), "run `make figures`"
    assert set(pictures) == set(described) - {"schematics"}
    for name, picture in pictures.items():
        entry = described[name]
        assert all(isinstance(each, str) for each in entry["differences"]), name
        for its, ours in entry["series"].items():
            assert ours is None or ours in picture.names, (name, its, picture.names)
            if ours is None:
                assert any(its.lower() in each.lower() for each in entry["differences"]), (name, its)


def test_every_paper_has_a_page() -> None:
    assert sorted(path.parent.name for path in (ROOT / "results").glob("*/scoreboard.csv")) == PAPERS


def test_a_picture_is_read_as_it_is_drawn() -> None:
    figure, axes = plt.subplots(layout="constrained")
    axes.bar(["A", "B"], [1, 2], label="ours")
    mark(axes, "A", Stated(1.5, JUDGED))
    axes.set_ylabel("time\n(s)")
    axes.set_title("a panel")
    found = drawn(finish(figure, "A picture"))
    assert (found.title, found.x, found.y, found.panels) == ("A picture", ("A, B",), ("time (s)",), ("a panel",))
    assert (found.series, found.marks) == (("ours",), {JUDGED: 1})
    assert found.key == "Bars are ours, simulated; those without a red mark are not judged"


def test_a_picture_without_a_description_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vdnn").mkdir()
    (tmp_path / "vdnn" / pages.FILE).write_text("schematics: [1]\n")
    monkeypatch.setattr(pages, "HERE", tmp_path)
    picture = Drawn("A picture", (), (), (), (), {}, "")
    assert _write_page("vdnn", {"figure99": picture}) == 2
    assert "vdnn/figures.yaml does not describe every picture (KeyError: 'figure99')" in capsys.readouterr().err
