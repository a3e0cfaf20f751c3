"""Cells are listed by the options in which they differ."""

from dataclasses import replace
from typing import Any

from membench.core.configuration import read
from membench.core.document import as_text
from membench.core.record import Outcome, Record
from membench.sweep.results.listing import differences, plan, ranking
from membench.sweep.results.records import Records
from membench.sweep.results.tracked import run_names
from tests.helpers.sweep.cells import small_cell
from tests.helpers.sweep.jobs import answer


def _strategy(name: str, **options: Any) -> dict[str, Any]:
    return read("strategy", name) | options


def test_only_what_differs_is_named() -> None:
    cells = [small_cell(strategy=_strategy(name), seed=seed) for name in ("eager", "vdnn_all") for seed in (0, 1)]
    assert differences(cells) == [
        {"strategy": "eager", "seed": "0"},
        {"strategy": "eager", "seed": "1"},
        {"strategy": "vdnn_all", "seed": "0"},
        {"strategy": "vdnn_all", "seed": "1"},
    ]
    assert differences(cells[:1]) == [{}]


def test_options_in_a_file_count_among_the_cells_that_have_that_file() -> None:
    cells = [
        small_cell(strategy=_strategy("epmc", density=0.5)),
        small_cell(strategy=_strategy("epmc", density=0.7)),
        small_cell(strategy=_strategy("eager")),
    ]
    assert differences(cells) == [
        {"strategy": "epmc", "strategy.density": "0.5"},
        {"strategy": "epmc", "strategy.density": "0.7"},
        {"strategy": "eager"},
    ]
    devices = [small_cell(device=read("device", name)) for name in ("k40m", "titan_z")]
    assert differences(devices) == [{"device": "k40m"}, {"device": "titan_z"}]  # not each of its numbers


def test_cells_that_differ_are_listed_differently(tmp_path: Any) -> None:
    cells = [
        small_cell(),
        small_cell(seed=1),
        small_cell(batch_size=8),
        small_cell(budget="1 GB"),
        small_cell(exchange="at_end"),
        small_cell(cluster=read("cluster", "modnn_k40x4")),
        small_cell(framework=read("framework", "torch7")),
        small_cell(device=read("device", "k40c")),
        small_cell(metrics="experiments.vdnn.metrics.step_metrics"),
    ]
    *lines, total = plan([(Records(tmp_path, answer), cells)])
    assert len(set(lines)) == len(lines) == len(cells)
    assert len({len(line) for line in lines}) == 1  # aligned
    assert not any("model=" in line or "backend" in line for line in lines)
    assert total.startswith("9 cells: 9 missing")
    assert len(set(run_names(cells))) == len(cells)


def test_the_name_of_a_run_has_its_model_and_what_else_distinguishes_it() -> None:
    cells = [small_cell(), small_cell(seed=1, budget="1 GB")]
    assert run_names(cells) == ["lenet batch 4 eager seed=0", "lenet batch 4 eager budget 1.0 GB seed=1"]


def _of(strategy: str, outcome: Outcome, step_time_s: float) -> Record:
    cell = small_cell(strategy=_strategy(strategy))
    made = Record.of_failure(cell, outcome, "too large") if outcome is not Outcome.OK else answer(cell)
    metrics = {"peak_memory_bytes": 2**30, "step_time_s": step_time_s, "images_per_s": 8 / step_time_s}
    return replace(made, outcome=outcome, metrics=metrics if outcome is Outcome.OK else {})


def test_a_sweep_ends_with_those_that_fit_the_fastest_first() -> None:
    records = [
        _of("eager", Outcome.OUT_OF_MEMORY, 0.5),
        _of("vdnn_all", Outcome.OK, 2.0),
        _of("joint", Outcome.OK, 1.0),
    ]
    title, header, *rows = as_text(ranking(records)).splitlines()
    assert "simulated on" in title
    assert header.split()[0] == "strategy"
    assert [row.split()[0] for row in rows] == ["joint", "vdnn_all", "eager"]
    assert rows[-1].endswith("out of memory") and "1 s" in rows[0] and "2 s" in rows[1]
