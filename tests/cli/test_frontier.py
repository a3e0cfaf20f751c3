"""`membench frontier`: a table and a picture of strategies under budgets, and one-line errors."""

from pathlib import Path

import pytest

from membench.cli.frontier import LEFT_OUT
from membench.cli.main import main
from membench.core import configuration
from membench.core.tables import read_csv

Row = dict[str, str]
WORDS = ["model=alexnet", "device=k40m", "batch_size=8", "budgets=3", "workers=1"]
STRATEGIES = ("joint", "dtr", "eager", "layrub_hybrid", "superneurons")


@pytest.fixture(scope="module")
def frontier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results."""
    folder = tmp_path_factory.mktemp("frontier")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["frontier", *WORDS, f"strategies={','.join(STRATEGIES)}"]) == 0
    return folder / "outputs" / "frontiers"


@pytest.fixture
def rows(frontier: Path) -> list[Row]:
    return read_csv(frontier / "alexnet_k40m.csv", columns=("strategy", "budget_bytes", "peak_bytes"))


@pytest.mark.slow
def test_it_writes_a_table_and_a_picture(frontier: Path, rows: list[Row]) -> None:
    assert (frontier / "alexnet_k40m.png").read_bytes().startswith(b"\x89PNG")
    assert list(dict.fromkeys(row["strategy"] for row in rows)) == list(STRATEGIES)


@pytest.mark.slow
def test_no_peak_exceeds_its_budget_and_only_some_strategies_take_one(rows: list[Row]) -> None:
    budgeted = [row for row in rows if row["budget_bytes"]]
    assert all(int(row["peak_bytes"]) <= int(row["budget_bytes"]) for row in budgeted)
    assert "joint" in {row["strategy"] for row in budgeted}
    assert "eager" not in {row["strategy"] for row in budgeted}


@pytest.mark.slow
def test_no_strategy_is_faster_than_the_bound_of_a_budget_that_it_keeps(rows: list[Row]) -> None:
    bounds = {
        int(row["budget_bytes"]): float(row["lower_bound_s"])
        for row in rows
        if row["lower_bound_s"] and row["budget_bytes"]
    }
    assert bounds
    for budget, bound_s in bounds.items():
        within = [float(row["step_time_s"]) for row in rows if int(row["peak_bytes"]) <= budget]
        assert min(within) >= bound_s * (1 - 1e-5)


@pytest.mark.slow
def test_joint_is_the_fastest_within_each_of_its_budgets(rows: list[Row]) -> None:
    ours = [row for row in rows if row["strategy"] == "joint" and row["budget_bytes"]]
    for own in ours:
        within = [float(row["step_time_s"]) for row in rows if int(row["peak_bytes"]) <= int(own["budget_bytes"])]
        assert float(own["step_time_s"]) <= min(within) * (1 + 1e-5)


@pytest.mark.slow
def test_a_smaller_budget_is_never_faster(rows: list[Row]) -> None:
    ours = sorted(
        (int(row["budget_bytes"]), float(row["step_time_s"]))
        for row in rows
        if row["strategy"] == "joint" and row["budget_bytes"]
    )
    times_s = [step_time_s for _, step_time_s in ours]
    assert len(times_s) > 2 and times_s == sorted(times_s, reverse=True)


def test_strategies_that_are_left_out_exist() -> None:
    assert LEFT_OUT.keys() <= set(configuration.names("strategy"))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["model=lenet"], "name the device"),
        (["device=k40m"], "name the model"),
        ([*WORDS, "strategies=joint,jiont"], "strategies"),
        ([*WORDS, "budgets=0"], "budgets is a positive whole number"),
        ([*WORDS, "budget=1GB"], "budget is not an option of frontier"),
        ([*WORDS, "tracking=offline"], "tracking is not an option of frontier"),
        (["model=lenot", "device=k40m"], "model 'lenot' is not known"),
        (["-m", "model=lenet", "device=t4"], "-m is not an option"),
    ],
)
def test_wrong_words_are_refused_in_a_line(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontier", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out
