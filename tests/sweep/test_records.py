"""Records on disk: what runs again, what does not, and what is noticed."""

from pathlib import Path
from typing import Any

import pytest

from membench.core.record import Configuration, Outcome, Record
from membench.sweep import records as module
from membench.sweep.listing import plan
from membench.sweep.records import Records, Rerun, State
from tests.helpers.jobs import record_of


def _cell(name: str, batch_size: int | str = 4) -> dict[str, Any]:
    return {"model": {"name": name}, "batch_size": batch_size, "strategy": {"_target_": "a.Eager"}}


class Runner:
    def __init__(self, outcome: Outcome = Outcome.OK) -> None:
        self.outcome = outcome
        self.ran: list[str] = []

    def __call__(self, cell: Configuration) -> Record:
        self.ran.append(cell["model"]["name"])
        return record_of(cell, self.outcome, peak_memory_bytes=1e6, images_per_s=7.0)


def test_a_sweep_that_was_stopped_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder, first, second = tmp_path / "gpu", Runner(), Runner()
    made = [Records(folder, first).run(_cell(name)) for name in ("a", "b")]
    again = Records(folder, second)
    assert [again.run(_cell(name)) for name in ("a", "b")] == made
    assert again.run(_cell("c")).metrics["images_per_s"] == 7.0
    assert (first.ran, second.ran) == (["a", "b"], ["c"])
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("rerun", "again"),
    [
        (Rerun.MISSING, []),
        (Rerun.FAILED, ["failed", "timeout"]),
        (Rerun.ALL, ["failed", "out_of_memory", "timeout"]),
    ],
)
def test_rerun_selects_the_cells_to_run_again(rerun: Rerun, again: list[str], tmp_path: Path) -> None:
    outcomes = (Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT)
    for outcome in outcomes:
        Records(tmp_path, Runner(outcome)).run(_cell(str(outcome)))
    runner = Runner()
    records = Records(tmp_path, runner, rerun)
    for outcome in (*outcomes, *outcomes):  # what ran once in this sweep is not run twice
        records.run(_cell(str(outcome)))
    assert runner.ran == again


def test_a_record_of_other_sources_is_stale_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner()
    records = Records(tmp_path, runner)
    assert records.state(_cell("a")) is State.MISSING
    records.run(_cell("a"))
    assert records.state(_cell("a")) is State.DONE
    monkeypatch.setattr(module, "sources_hash", lambda _: "edited")
    edited = Records(tmp_path, runner)
    assert edited.state(_cell("a")) is State.STALE
    edited.run(_cell("a"))
    assert (runner.ran, edited.state(_cell("a"))) == (["a", "a"], State.DONE)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"record": {}}', '{"sources_hash": "a", "run_time_s": 1, "record": 3}']
)
def test_a_broken_record_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    runner = Runner()
    records = Records(tmp_path, runner)
    records.run(_cell("a"))
    [file] = tmp_path.iterdir()
    whole = file.read_text()
    file.write_text(text)
    again = Records(tmp_path, runner)
    assert (again.state(_cell("a")), again.expected_time_s([_cell("a")])) == (State.MISSING, [None])
    again.run(_cell("a"))
    assert runner.ran == ["a", "a"] and len(file.read_text()) == pytest.approx(len(whole), abs=5)


def test_a_folder_that_cannot_be_written_is_found_before_the_cell_runs(tmp_path: Path) -> None:
    runner = Runner()
    (file := tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Records(file / "records", runner).run(_cell("a"))
    assert not runner.ran


def test_a_search_goes_on_from_the_batches_that_it_tried(tmp_path: Path) -> None:
    tried: list[int] = []

    def run(cell: Configuration) -> Record:
        tried.append(cell["batch_size"])
        if len(tried) == 4:
            raise KeyboardInterrupt
        return record_of(cell, Outcome.OK if cell["batch_size"] <= 100 else Outcome.OUT_OF_MEMORY)

    with pytest.raises(KeyboardInterrupt):
        Records(tmp_path, run).run(_cell("a", "largest"))
    stopped_at = tried[-1]
    found = Records(tmp_path, run).run(_cell("a", "largest"))
    assert found.configuration["batch_size"] == 96
    assert sorted(set(tried)) == sorted([*tried[:3], *tried[4:]]) and stopped_at in tried[4:]
    before = len(tried)
    assert Records(tmp_path, run).run(_cell("a", "largest")) == found
    assert len(tried) == before


def test_a_plan_lists_states_and_the_time_that_is_left(tmp_path: Path) -> None:
    records = Records(tmp_path, Runner())
    assert plan([(records, [_cell("a")])]).endswith("1 cell: 1 missing; 1 to run, 1 of unknown time")
    records.run(_cell("a"))
    text = plan([(records, [_cell("a"), _cell("b")])])
    assert text.splitlines()[0].split() == ["done", "model=a"]
    assert "runs, " in text.splitlines()[1]
    assert text.splitlines()[2].startswith("2 cells: 1 done, 1 missing; 1 to run, about ")
