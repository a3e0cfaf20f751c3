"""Rows of a table: what a description makes of them."""

from pathlib import Path
from typing import Any

import yaml

from membench.lab.validation.rows import Row, read_rows

TABLE = """net,bits,n,memory,minutes,rate
small,None,1,4.82 GB,1.62 min,100
small,4,1,"3,780 MB",1.77 min,50
small,None,4,OOM,-,
small,8,1,N/A,-,
"""
DESCRIPTION = """
columns: {network: net, bits: bits, batch_size: n}
devices: t4
measured: {allocated_bytes: {column: memory, unit: 1.0e+9}, step_time_s: {column: minutes, unit: 0.06}}
out_of_memory: {column: memory, cells: [OOM]}
compared_with: {bits: "None"}
not_run: [{bits: 8, reason: it does not exist}]
values:
  kind: {by: "{network} {bits}", names: {small None: plain, small 4: packed}}
  longest: {by: "{kind}", names: {plain: 100, packed: 90}}
  format: {by: "{kind}", names: {plain: fp32, packed: fp16}}
  typical: {by: "{batch_size}", names: {1: 10, 4: 20}}
timed: {longest: "{typical}"}
around_s: 0.5
rates: {issue_s: 1.0e-5}
precision: "{format}"
keeps_layout: true
allocator: expandable_segments:True
optimizer: {name: adamw, fused: true}
channels_last: false
model_of: "{kind}"
models:
  plain: {module: {_target_: torch.nn.Identity}, loss: null, inputs: [{shape: ["{longest}"]}]}
  packed: {module: {_target_: torch.nn.Flatten}, loss: null, inputs: [{shape: ["{longest}"]}]}
"""


def rows(tmp_path: Path, **changes: Any) -> tuple[Row, ...]:
    (tmp_path / "table.csv").write_text(TABLE)
    return read_rows({**yaml.safe_load(DESCRIPTION), **changes}, tmp_path / "table.csv")


def test_a_cell_may_have_its_unit_and_a_cell_without_a_number_is_not_measured(tmp_path: Path) -> None:
    first, second, third, _ = rows(tmp_path)
    assert first.measured == {"allocated_bytes": 4.82e9, "step_time_s": 1.62 * 0.06}
    assert second.measured["allocated_bytes"] == 3780e9
    assert not third.measured


def test_a_rate_becomes_the_time_of_a_step(tmp_path: Path) -> None:
    found = rows(tmp_path, measured={"step_time_s": {"column": "rate", "per_step": "{longest}"}})
    assert [row.measured.get("step_time_s") for row in found] == [1.0, 1.8, None, None]


def test_further_values_choose_the_network_and_its_sizes(tmp_path: Path) -> None:
    first, second, *_ = rows(tmp_path)
    assert first.step["model"]["module"] == {"_target_": "torch.nn.Identity"}
    assert second.step["model"]["module"] == {"_target_": "torch.nn.Flatten"}
    assert second.step["model"]["inputs"] == [{"shape": [90]}]
    assert second.step["optimizer"] == {"name": "adamw", "fused": True}
    assert second.step["precision"] == "fp16" and second.step["keeps_layout"]
    assert second.step["allocator"] == "expandable_segments:True"
    assert second.step["rates"] == {"issue_s": 1e-5} and second.around_s == 0.5


def test_the_timed_step_differs_in_the_values_that_it_names(tmp_path: Path) -> None:
    first, *_ = rows(tmp_path)
    assert first.timed is not None
    assert first.timed["model"]["inputs"] == [{"shape": [10]}]
    assert {**first.timed, "model": None} == {**first.step, "model": None}
    assert rows(tmp_path, timed={})[0].timed is None


def test_other_rates_hold_for_all_steps_of_a_row_but_for_those_of_its_program(tmp_path: Path) -> None:
    row = rows(tmp_path)[0].with_rates({"copy": 0.5, "issue_s": 1.0})
    assert row.timed is not None
    assert row.step["rates"] == row.timed["rates"] == {"copy": 0.5, "issue_s": 1.0e-5}


def test_a_row_that_ran_out_of_memory_did_not_fit(tmp_path: Path) -> None:
    assert [row.fits for row in rows(tmp_path)] == [True, True, False, True]


def test_a_row_that_is_not_run_has_the_reason_and_needs_no_values(tmp_path: Path) -> None:
    assert [row.reason for row in rows(tmp_path)] == ["", "", "", "it does not exist"]


def test_a_row_that_the_description_lacks_a_value_for_has_that_as_its_reason(tmp_path: Path) -> None:
    values = yaml.safe_load(DESCRIPTION)["values"]
    del values["typical"]["names"][4]
    found = rows(tmp_path, values=values)
    assert [row.reason for row in found] == ["", "", "the description has no 'typical' for 4", "it does not exist"]


def test_a_row_is_compared_with_the_one_that_differs_only_so_or_with_the_previous(tmp_path: Path) -> None:
    assert [row.base for row in rows(tmp_path)] == [None, 0, None, 0]
    assert [row.base for row in rows(tmp_path, compared_with="previous")] == [None, 0, 1, 2]


def test_a_product_of_values_is_a_value(tmp_path: Path) -> None:
    values = yaml.safe_load(DESCRIPTION)["values"] | {"work": {"product": [0.5, "{batch_size}", "{longest}"]}}
    found = rows(tmp_path, values=values, measured={"step_time_s": {"column": "rate", "per_step": "{work}"}})
    assert [row.measured.get("step_time_s") for row in found] == [0.5, 0.9, None, None]


def test_a_quantity_may_have_several_columns(tmp_path: Path) -> None:
    columns = [{"column": "rate", "per_step": 100}, {"column": "minutes", "unit": 60.0}]
    assert rows(tmp_path, measured={"step_time_s": columns[:1]})[0].measured == {"step_time_s": 1.0}
    assert rows(tmp_path, measured={"step_time_s": columns})[0].measured == {"step_time_s": 1.62 * 60}


def test_a_row_may_name_its_strategy_and_the_micro_batches_of_an_update(tmp_path: Path) -> None:
    plain = rows(tmp_path)[0]
    assert "strategy" not in plain.step and plain.micro_batches == 1
    found = rows(tmp_path, strategy={"name": "{kind}"}, micro_batches="{longest}")[0]
    assert found.step["strategy"] == {"name": "plain"} and found.micro_batches == 100


def test_a_row_with_a_largest_network_has_steps_of_two_depths(tmp_path: Path) -> None:
    largest = {"largest_parameters": {"column": "memory", "unit": 1.0}}
    first, _, without, _ = rows(tmp_path, measured=largest, sizes={"longest": [1, 2]})
    assert [step["model"]["inputs"][0]["shape"] for step in first.sizes] == [[1], [2]]
    assert without.sizes == ()
