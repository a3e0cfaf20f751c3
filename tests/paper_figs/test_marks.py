"""Each mark says whose number it is and whether ours is judged by it, as the scoreboard has it."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from paper_figs import style
from paper_figs.marks import FITTED, JUDGED, NOT_JUDGED, Stated, finish, mark, mark_rows, numbers, stated

COLUMNS = ("item", "model", "batch_size", "device", "system", "metric", "paper_value")
ROWS = (
    ("Sec 1", "A", 32, "card", "S", "time", 3.0),
    ("Sec 2", "A", None, "card", "S", "time", 4.0),
    ("Sec 2", "B", None, "card", "S", "time", 5.0),
    ("Sec 2", "C", None, "card", "S", "time", 6.0),
    ("Figure 1", "A", None, "card", "S", "time", None),
)
VERDICTS = (("reproduced", "false"), ("worse", "true"), ("not_run", ""), ("input", ""), ("better", "false"))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pd.DataFrame]:
    """A paper's table, whose scoreboard has the verdicts `VERDICTS`."""
    (tmp_path / "made_up").mkdir()
    rows = pd.DataFrame(ROWS, columns=COLUMNS)
    board = rows.assign(verdict=[verdict for verdict, _ in VERDICTS], fitted=[fitted for _, fitted in VERDICTS])
    board.astype({"batch_size": object}).to_csv(tmp_path / "made_up" / "scoreboard.csv", index=False)
    monkeypatch.setattr(style, "RESULTS", tmp_path)
    with mpl.rc_context():
        style.use_style()
        yield rows
    plt.close("all")


def test_the_standing_of_a_number_is_the_scoreboards(table: pd.DataFrame) -> None:
    assert list(numbers(table, "made_up")["standing"]) == [JUDGED, FITTED, NOT_JUDGED, NOT_JUDGED]
    assert stated(table, "made_up", item="Sec 1") == Stated(3.0, JUDGED)
    assert stated(table, "made_up", item="Sec 2", model="B").changed(lambda value: 1 / value) == (0.2, NOT_JUDGED)


def test_marks_stand_on_the_bars_of_their_rows(table: pd.DataFrame) -> None:
    _, axes = plt.subplots()
    places = style.bar_groups(axes, pd.DataFrame({"S": [1.0, 2.0]}, index=["A", "B"]), {"S": "black"})
    mark_rows(axes, places, numbers(table, "made_up"))  # C has no bar
    drawn = {(*each.get_offsets()[0], each.get_label()) for each in axes.collections}
    assert drawn == {(0, 3.0, JUDGED), (0, 4.0, FITTED), (1, 5.0, NOT_JUDGED)}


@pytest.mark.parametrize(
    ("number", "note", "key"),
    [
        (Stated(1, JUDGED), "", "those without a red mark are not judged"),
        (Stated(1, NOT_JUDGED), "", "none is judged"),
        (None, "", "none is judged"),
        (None, "a mean", "judged is a mean"),
    ],
)
def test_the_legend_says_what_is_judged(table: pd.DataFrame, number: Stated | None, note: str, key: str) -> None:
    figure, axes = plt.subplots(layout="constrained")
    axes.bar([0], [1], label="ours")
    if number:
        mark(axes, 0, number, "at most")
    [legend] = finish(figure, "A picture", note=note).legends
    assert legend.get_title().get_text() == f"Bars are ours, simulated; {key}"
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["ours", *([f"{number.standing}: at most"] if number else [])]
