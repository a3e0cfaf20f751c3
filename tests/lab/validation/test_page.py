"""The page and the summary of a validation of some data sets: what they have of the others stays."""

from collections.abc import Sequence
from pathlib import Path

from membench.core.configuration import ROOT
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.errors import Comparison, summaries
from membench.lab.validation.page import write_page
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import Row
from membench.lab.validation.tables import write_summary

PUBLISHED = ROOT / "experiments" / "validation"
KNOWN = ["first", "second", "third"]


def write(folder: Path, names: Sequence[str], simulated: float) -> tuple[str, str]:
    compared = []
    for name in names:
        row = Row(0, "resnet18", "t4", {"step_time_s": 1.0}, None, {"batch_size": 8})
        data = DataSet(name, f"Title of {name}", "somewhere", (row,))
        compared.append((data, [Comparison(row, RowPrediction({"step_time_s": simulated}))]))
    found = [line for data, rows in compared for line in summaries(data, rows)]
    write_summary(found, folder, KNOWN)
    write_page(compared, found, PUBLISHED, folder, KNOWN)
    return (folder / "README.md").read_text(), (folder / "summary.csv").read_text()


def test_the_results_of_other_data_sets_stay(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    write(tmp_path / "one", KNOWN, 1.5)
    parts = write(tmp_path / "one", ["second"], 1.25)
    write(tmp_path / "other", ["second"], 1.25)
    write(tmp_path / "other", ["third"], 1.5)
    assert parts == write(tmp_path / "other", ["first"], 1.5)
    page, _ = parts
    assert page.count("50.0 %") > page.count("25.0 %") > 0
    assert page.index("Title of first") < page.index("Title of second") < page.index("Title of third")


def test_a_data_set_that_is_gone_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, ["first"], 1.5)
    text = (tmp_path / "README.md").read_text().replace("first", "gone")
    (tmp_path / "README.md").write_text(text)
    page, _ = write(tmp_path, ["second"], 1.25)
    assert "gone" not in page and "Title of second" in page
