"""Records on disk: what runs again, what does not, and what is noticed."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membench.core.configuration import ROOT
from membench.core.record import Configuration, Outcome, Record, configuration_hash
from membench.sweep.results import records as module
from membench.sweep.results.listing import plan
from membench.sweep.results.records import Records, Rerun, State
from tests.helpers.sweep.jobs import record_of


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
    [(Rerun.MISSING, []), (Rerun.FAILED, ["failed", "timeout"]), (Rerun.ALL, ["failed", "out_of_memory", "timeout"])],
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


def test_a_record_of_other_sources_is_stale_and_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-20],
        lambda whole: whole.replace(b"peak", b"\xff\x00"),
        lambda whole: b"\x80\x04" + whole,
        lambda whole: b"[" * 100_000,
        lambda whole: b"[]",
        lambda whole: b'{"record": {}}',
        lambda whole: b'{"sources_hash": "a", "run_time_s": 1, "record": 3}',
        lambda whole: whole.replace(b'"reason"', b'"cause"'),  # of another version
        lambda whole: re.sub(rb'"run_time_s": [\d.e-]+', b'"run_time_s": "soon"', whole),
        lambda whole: whole.replace(b"1000000.0", b'"much"'),
        lambda whole: whole.replace(b'"stderr_tail": ""', b'"stderr_tail": []'),
        lambda whole: whole.replace(b'"provenance": {}', b'"provenance": 3'),
        lambda whole: whole.replace(b'"name": "a"', b'"name": "b"'),  # not what was hashed
    ],
)
def test_a_broken_record_is_as_good_as_none(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    runner = Runner()
    records = Records(tmp_path, runner)
    records.run(_cell("a"))
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    again = Records(tmp_path, runner)
    assert (again.state(_cell("a")), again.expected_time_s([_cell("a")])) == (State.MISSING, [None])
    again.run(_cell("a"))
    assert runner.ran == ["a", "a"] and len(file.read_bytes()) == pytest.approx(len(whole), abs=5)


def test_a_record_of_another_cell_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    runner = Runner()
    records = Records(tmp_path, runner)
    records.run(_cell("a"))
    [file] = tmp_path.iterdir()
    for other in (_cell("b"), _cell("a", 5)):
        file.with_name(f"{configuration_hash(other)}.json").write_bytes(file.read_bytes())
        assert records.state(other) is State.MISSING
        assert records.run(other).configuration == other


SWEEP = """
import sys
from pathlib import Path
from membench.sweep.results import records
from membench.sweep.results.records import Records, Rerun
from tests.helpers.sweep.jobs import record_of
records.sources_hash = lambda _: "same"
for _ in range(20):
    store = Records(Path(sys.argv[1]), lambda cell: record_of(cell, peak_memory_bytes=1e6), Rerun.ALL)
    for size in range(1, 20):
        store.run({"model": {"name": "a"}, "batch_size": size})
"""


def test_two_sweeps_at_once_leave_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", SWEEP, str(tmp_path)]
    sweeps = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    monkeypatch.setattr(module, "sources_hash", lambda _: "same")
    reader = Records(tmp_path, Runner())
    cells = [{"model": {"name": "a"}, "batch_size": size} for size in range(1, 20)]
    written: set[int] = set()
    while any(sweep.poll() is None for sweep in sweeps):
        done = {cell["batch_size"] for cell in cells if reader.state(cell) is State.DONE}
        assert written <= done  # a record that was there is always whole
        written = done
    assert [sweep.returncode for sweep in sweeps] == [0, 0]
    assert len(list(tmp_path.iterdir())) == len(cells)
    assert {reader.state(cell) for cell in cells} == {State.DONE}


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
    assert plan([(records, [_cell("a")])])[-1].endswith("1 cell: 1 missing; 1 to run, 1 of unknown time")
    records.run(_cell("a"))
    text = "\n".join(plan([(records, [_cell("a"), _cell("b")])]))
    assert text.splitlines()[0].split() == ["done", "model=a"]
    assert "runs, " in text.splitlines()[1]
    assert text.splitlines()[2].startswith("2 cells: 1 done, 1 missing; 1 to run, about ")
