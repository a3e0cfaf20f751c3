"""The league: a peer's error and ours, on the same rows where each row's prediction is published."""

from dataclasses import replace
from pathlib import Path

import pytest

from membench.core.errors import MembenchError
from membench.core.tables import read_csv
from membench.lab.cli.validate import DATASETS, LEAGUE
from membench.lab.validation.dataset import DataSet, known_datasets, load_dataset
from membench.lab.validation.errors import Comparison
from membench.lab.validation.league import OPEN, OURS, standings, write_league
from membench.lab.validation.peers import Peer
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import Row

TIME = "step_time_s"
BY_ROW = Peer("Other", TIME, "the card", "its table", value="theirs", unit=1e-3)
BY_ITSELF = Peer("Whole", TIME, "nothing", "its text", statistic="mean", error=0.2, rows=900)


def row(number: int, theirs: float | None) -> Row:
    values = {} if theirs is None else {"theirs": theirs}
    return Row(number, "resnet18", "t4", {TIME: 1.0}, None, {"batch_size": 8}, values=values)


ROWS = [row(0, 1100), row(1, 1300), row(2, 900), row(3, None), row(4, 1000)]
DATA = DataSet("mine", "Mine", "somewhere", tuple(ROWS), peers=(BY_ROW, BY_ITSELF), knew="nothing")


def compared(error: float) -> list[Comparison]:
    of_all = [Comparison(each, RowPrediction({TIME: 1 + error * (1 + each.number % 2)})) for each in ROWS]
    return [*of_all[:4], replace(of_all[4], fitted=frozenset([TIME]))]


def test_errors_are_taken_on_the_rows_that_the_peer_predicted() -> None:
    by_row, by_itself = standings([(DATA, compared(0.01))])
    assert (by_row.rows, by_row.peers_rows, by_row.is_same) == (3, 3, True)  # neither the fitted one nor that without
    assert by_row.peers == pytest.approx(0.1) and by_row.ours == pytest.approx(0.01)
    assert by_row.peers_interval and by_row.ours_interval
    assert (by_itself.rows, by_itself.peers_rows, by_itself.is_same) == (4, 900, False)
    assert by_itself.peers == 0.2 and by_itself.ours == pytest.approx(0.015) and by_itself.peers_interval is None


@pytest.mark.parametrize(("error", "ahead"), [(0.01, OURS), (0.07, OPEN), (0.5, "Other")])
def test_who_is_ahead_is_open_where_the_interval_has_both(error: float, ahead: str) -> None:
    assert standings([(DATA, compared(error))])[0].ahead == ahead


def test_the_page_has_each_row_and_says_where_we_are_behind(tmp_path: Path) -> None:
    write_league([(DATA, compared(0.5))], tmp_path)
    lines = read_csv(tmp_path / "mine.csv")
    assert [line["Other_value"] for line in lines] == ["1.1", "1.3", "0.9", "", "1"]
    assert lines[1]["Other_relative_error"] == "0.3000" and lines[1]["membench_relative_error"] == "1.0000"
    assert [line["fitted"] for line in lines] == ["no"] * 4 + ["yes"]
    page = (tmp_path / "README.md").read_text()
    assert "**We are behind in 2**: Other has 10.0 % on mine, where we have 50.0 %; Whole has 20.0 %" in page
    write_league([(DATA, compared(0.01))], tmp_path)
    assert "We are behind in none." in (tmp_path / "README.md").read_text()


def test_the_committed_league_has_each_peer_of_the_data_sets() -> None:
    datasets = [load_dataset(DATASETS, name) for name in known_datasets(DATASETS)]
    named = [(data.name, peer.name) for data in datasets for peer in data.peers]
    assert [(line["dataset"], line["peer"]) for line in read_csv(LEAGUE / "summary.csv")] == named
    assert all(data.knew for data in datasets if data.peers)


@pytest.mark.parametrize("wrong", [{"quantity": "seconds"}, {"statistic": "mode"}])
def test_a_wrong_word_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(MembenchError, match="is not known"):
        replace(BY_ROW, **wrong)
