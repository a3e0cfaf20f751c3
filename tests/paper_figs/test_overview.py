"""The overview: every judged number is one dot, at its exact ratio or in a margin, and the same bytes each time."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.configuration import ROOT
from paper_figs import style
from paper_figs.__main__ import figures, main
from paper_figs.overview import (
    COLORS,
    DOT_IN,
    LESS,
    MARGIN_OCTAVES,
    MORE,
    MOST_LANES,
    NO_RATIO,
    OCTAVES,
    dot_row,
    draw_all,
    draw_paper,
    judged_numbers,
    papers_with_numbers,
    stack,
)

PAPERS = sorted(path.parent.name for path in (ROOT / "results").glob("*/scoreboard.csv"))

COLUMNS = (
    "item", "paper_value", "simulated_value", "measured_value", "deviation", "verdict", "fitted", "held_out", "choice",
    "can_fail",
)  # fmt: skip
BOARD = (
    ("Table 1", 100, 105, "", 0.05, "reproduced", "false", "false", "", "true"),
    ("Table 1", 100, 50, "", -0.5, "worse", "true", "false", "", "true"),
    ("Table 10", 100, 1e4, "", 99, "better", "false", "true", "a; b", "true"),
    ("Sec 5.2 footnote 2", 10, 11, "", 0.1, "reproduced", "false", "false", "", "false"),
    ("Table 2", "", "", "", "", "out_of_memory_as_in_paper", "false", "false", "", "false"),
    ("Table 2", 98, "", 97, "", "reproduced", "false", "false", "", "true"),
    ("Abstract", 24, -64, "", -3.6, "better", "false", "false", "", "true"),
    ("Abstract", 0, 3, "", "", "worse", "false", "false", "", "true"),
    ("Table 1", 3, "", "", "", "not_run", "", "", "", ""),
    ("Table 1", 3, "", "", "", "input", "", "", "", ""),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with mpl.rc_context():
        style.use_style()
        yield


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A paper with the scoreboard `BOARD`."""
    (tmp_path / "paper").mkdir()
    pd.DataFrame(BOARD, columns=COLUMNS).to_csv(tmp_path / "paper" / "scoreboard.csv", index=False)
    (tmp_path / "paper" / "totals.csv").write_text("Paper\nPaper: a title\n")
    monkeypatch.setattr(style, "RESULTS", tmp_path)
    return "paper"


def test_judged_numbers_are_the_scoreboards(made_up: str) -> None:
    numbers = judged_numbers(made_up)
    kinds = ["reproduced", "fitted", "held out", "reproduced", "reproduced", "reproduced", "better", "worse"]
    assert list(numbers["kind"]) == kinds
    assert list(numbers["place"][2:4]) == ["Table 10", "Sec 5.2"]
    assert list(numbers["ratio"][:4]) == [1.05, 0.5, 100, 1.1]
    assert numbers["ratio"][4:].isna().all()  # out of memory, measured, negative, zero
    assert list(numbers.index[numbers["on_choice"]]) == [2]
    assert list(numbers.index[numbers["cannot_fail"]]) == [3, 4]
    assert list(numbers.index[numbers["agrees"]]) == [0, 3, 4, 5]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_judged_number_of_a_paper_is_a_dot(paper: str) -> None:
    board = pd.read_csv(ROOT / "results" / paper / "scoreboard.csv", dtype=str, keep_default_na=False)
    board = board[~board["verdict"].isin(["input", "in_kind", "not_run"])]
    (axes,) = draw_paper(paper).axes
    drawn = [line for line in axes.lines if line.get_marker() in ("o", "D")]
    assert sum(len(line.get_xdata()) for line in drawn) == len(board)
    choices = sum(len(line.get_xdata()) for line in drawn if line.get_marker() == "D")
    assert choices == (board["choice"] != "").sum()
    outlines = sum(len(line.get_xdata()) for line in drawn if line.get_markerfacecolor() == "white")
    assert outlines == (board["can_fail"] == "false").sum()
    assert sum(int(text.get_text().split("/")[1]) for text in axes.texts[:-1]) == len(board)
    mpl.pyplot.close("all")


@given(st.lists(st.floats(-3, 3), max_size=40).map(sorted), st.floats(0.01, 1))
def test_lanes_are_as_few_as_dots_that_do_not_overlap_allow(positions: list[float], dot: float) -> None:
    lanes = stack(positions, dot)
    for lane in set(lanes):
        own = [position for position, other in zip(positions, lanes, strict=True) if other == lane]
        assert all(later - earlier >= dot for earlier, later in pairwise(own))
    crowds = [sum(1 for other in positions if other <= p and p - other < dot) for p in positions]
    assert max(lanes, default=-1) + 1 == max(crowds, default=0)


@given(st.lists(st.one_of(st.floats(1e-3, 1e3), st.just(1.0), st.just(np.nan)), min_size=1, max_size=60))
def test_a_dot_is_at_its_ratio_or_in_a_margin(ratios: list[float]) -> None:
    row = dot_row("row", pd.DataFrame({"ratio": ratios}), DOT_IN)
    assert len(row.numbers) == len(ratios)
    assert 1 <= row.lanes <= MOST_LANES
    assert (row.numbers["lane"].abs() <= MOST_LANES / 2).all()
    for ratio, octave in zip(ratios, row.numbers["octave"], strict=True):
        if abs(np.log2(ratio)) <= OCTAVES:
            assert octave == np.log2(ratio)
        else:
            middle = NO_RATIO if np.isnan(ratio) else MORE if ratio > 1 else LESS
            assert abs(octave - middle) <= MARGIN_OCTAVES


def test_the_same_results_are_the_same_bytes(made_up: str, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        style.save(draw_paper(made_up), tmp_path / folder / "overview")
        style.save(draw_all(), tmp_path / folder / "all")
    for name in ("overview.png", "overview.pdf", "all.png", "all.pdf"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_each_run_draws_the_overviews_after_a_papers_figures(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = [str(path.relative_to(ROOT / "paper_figs")) for path, _ in figures(["vdnn"])]
    assert "vdnn/figure3" in drawn
    assert drawn[-4:] == ["vdnn/overview", "overview", "home_light", "home_dark"]
    assert main(["nobody"]) == 2
    assert capsys.readouterr().err.startswith("paper_figs: there is no paper 'nobody'; there are: ")


def test_all_papers_are_on_the_overview() -> None:
    figure = draw_all()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.lower() for title in titles] == papers_with_numbers() == PAPERS
    mpl.pyplot.close("all")


PROTANOPIA = ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1))
DEUTERANOPIA = ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1))
"""Linear RGB as dichromats see it (Vienot, Brettel, Mollon, Color Research and Application 24, 1999)."""
XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8730))
"""From linear RGB (IEC 61966-2-1), relative to its white."""


@pytest.mark.parametrize("sight", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["usual", "protan", "deutan"])
def test_kinds_differ_without_red_and_green(sight: np.ndarray) -> None:
    channels = np.array([mpl.colors.to_rgb(color) for color in COLORS.values()])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(np.clip(linear @ np.array(sight).T, 0, 1) @ np.array(XYZ).T).T
    lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)  # CIE 1976
    for one, other in combinations(lab, 2):
        assert np.linalg.norm(one - other) > 20  # 2.3 is just noticeable
