"""Scripts for a loan of a GPU, tried without one."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from benchmarks.gpu_visit import attention, contract, convolutions, facts, host_calls, league, memory_stages
from benchmarks.gpu_visit import verification as limits
from benchmarks.gpu_visit.__main__ import arguments, main, run_part, summary
from benchmarks.gpu_visit.inductor import InductorPrograms, with_inductor
from benchmarks.gpu_visit.methods import Network, measure_network, systems
from benchmarks.gpu_visit.part import PARTS, Part
from benchmarks.gpu_visit.pytest_rows import pytest_collection_modifyitems
from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.core.configuration import ROOT
from membench.core.step.workload import Workload
from membench.lab.validation.predicting import predict_rows
from tests.helpers.devices import DEVICE

FEW = [convolutions.Case(2, "fp32", False, 3, 4, 1, 3), convolutions.Case(3, "tf32", True, 4, 4, 2, 1)]
CPU = torch.device("cpu")
MODULES = ("__main__", *(part.module for part in PARTS.values()))


def visit(folder: Path) -> Visit:
    return Visit(folder, "cpu", is_small=True)


def values(rows: Rows) -> dict[str, Any]:
    return {row["row"]: row for row in rows.read()}


def test_a_row_that_is_there_is_not_measured_again_and_one_that_failed_is(tmp_path: Path) -> None:
    rows, calls = Rows(tmp_path / "made" / "rows.jsonl", "cpu"), []

    def measured(name: str, error: Exception | None = None) -> None:
        def measure() -> Values:
            calls.append(name)
            if error:
                raise error
            return {"time_s": 1.0}

        rows.measure(name, measure)

    for error in (ValueError("broken"), None):
        measured("there")
        measured("without a GPU", NotRun("no GPU"))
        measured("failed", error)
    assert calls == ["there", "without a GPU", "failed", "failed"]
    found = rows.read()
    assert [row.get("error") for row in found] == [None, None, "ValueError: broken", None]
    assert found[1]["not_run"] == "no GPU" and found[3]["time_s"] == 1.0
    assert all(row["provenance"]["device"] == "cpu" and row["provenance"]["commit"] for row in found)
    assert summary(rows) == "2 rows, 0 failed, 1 not run"


def test_a_line_that_a_stop_has_cut_off_costs_that_row_alone(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl", "cpu")
    rows.write("first", {})
    with rows.path.open("a") as file:
        file.write('{"row": "cut o')
    rows.write("second", {})
    assert rows.done() == {"first", "second"}


def test_a_part_is_ended_at_its_limit_and_its_rows_stay(tmp_path: Path) -> None:
    options = arguments([str(tmp_path), "--backend", "cpu", "--small"])
    Rows(tmp_path / "b.jsonl", "cpu").write("kept", {})
    assert not run_part("b", Part("facts", 0, "facts"), options)
    assert Rows(tmp_path / "b.jsonl", "cpu").done() == {"kept"}


def test_parts_are_chosen_by_letters() -> None:
    assert arguments(["folder", "--parts", "c,a"]).parts == ["c", "a"]
    with pytest.raises(SystemExit):
        arguments(["folder", "--parts", "z"])


def test_the_parts_leave_time_for_the_start_and_the_transfers() -> None:
    halves = [sum(PARTS[letter].limit_s for letter in letters) for letters in ("abc", "def")]
    assert max(halves) < 600 and sum(halves) <= 15 * 60 - 240


@pytest.mark.slow
@pytest.mark.parametrize("missing", [("hydra", "omegaconf", "antlr4", "wandb")])
def test_the_scripts_need_none_of_the_packages_that_the_device_machine_lacks(missing: tuple[str, ...]) -> None:
    code = f"""
import importlib, sys
class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
for name in {MODULES}:
    importlib.import_module("benchmarks.gpu_visit." + name)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_tests_with_a_row_are_not_collected_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rows = Rows(tmp_path / "rows.jsonl", "cpu")
    with patch.dict(os.environ, contract.environment(visit(tmp_path), rows)):
        items = [request.node]
        pytest_collection_modifyitems(request.config, items)
        assert items == [request.node]
        rows.write(request.node.nodeid, {"passed": True})
        with patch.object(request.config.hook, "pytest_deselected"):
            pytest_collection_modifyitems(request.config, items)
        assert items == []


def test_the_tests_of_the_contract_are_there() -> None:
    assert all((ROOT / name).exists() for name in (*contract.TESTS, contract.SMALL_TESTS[0]))


@pytest.mark.slow
def test_each_test_of_the_contract_is_a_row(tmp_path: Path) -> None:
    rows = visit(tmp_path).rows("a")
    contract.run(visit(tmp_path), rows)
    (row,) = rows.read()
    assert row["passed"] and row["row"].startswith(contract.SMALL_TESTS[0]) and row["wall_s"] > 0
    with (
        patch.object(contract, "SMALL_TESTS", ("tests/no_such_file.py",)),
        pytest.raises(subprocess.CalledProcessError),
    ):
        contract.run(visit(tmp_path), rows)


def test_each_convolution_is_a_row_with_its_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "cases", lambda: FEW)
    rows = visit(tmp_path).rows("b")
    convolutions.run(visit(tmp_path), rows)
    found = [each for row in rows.read() for each in row["passes"]]
    assert [each["pass"] for each in found] == 2 * ["forward", "weight", "data"]
    assert all(each["workspace_bytes"] >= 0 for each in found)
    images, weight, result = 2 * 3 * 36, 3 * 4 * 9, 2 * 4 * 36
    assert [each["copies_bytes"] for each in found] == 3 * [4 * (images + weight + result)] + 3 * [0]


@pytest.mark.accelerator
@pytest.mark.parametrize("case", FEW)
def test_a_convolution_is_measured_on_the_device(case: convolutions.Case) -> None:
    rows = list(convolutions.measured(case, convolutions.SMALL, DEVICE))
    assert len(rows) == 3 and all("workspace_bytes" in row for row in rows)


def test_the_cases_of_convolutions_have_each_format_in_each_layout() -> None:
    found = [(case.axes, case.precision, case.channels_last) for case in convolutions.cases()]
    assert len(set(found)) == 16 and len(set(map(str, convolutions.cases()))) == len(found)


def test_a_kernel_of_attention_is_named_for_every_case() -> None:
    cases = list(attention.cases())
    assert len({case.name for case in cases}) == len(cases) - cases.count(attention.Case()) + 1
    found = {attention.attention_kernel(attention.made(case, CPU), AnyGpu(9.0)) for case in cases}
    assert found == set(attention.AttentionKernel)


def test_the_profiler_sees_which_kernel_ran() -> None:
    found = attention.compared(attention.Case(queries=8, keys=8, switches="math"), CPU, AnyGpu(9.0))
    assert found["ran"] == found["predicted"] == "MATH" and found["agrees"]


def test_every_stage_of_memory_runs_where_its_kernels_are() -> None:
    used = iter(range(100, 200))
    with patch("torch.accelerator.synchronize"), patch("torch.accelerator.memory_reserved", return_value=7):
        rows = memory_stages.measured(CPU, 20, lambda: next(used))
    assert {row["stage"] for row in rows if "error" in row} <= {"efficient attention", "cudnn attention"}
    assert [row["outside_bytes"] for row in rows] == [73 + i for i in range(len(rows))]


def test_calls_of_the_host_are_timed_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_calls, "CALLS", 2)
    monkeypatch.setattr(host_calls, "REPETITIONS", 1)
    rows = visit(tmp_path).rows("b")
    host_calls.run(visit(tmp_path), rows)
    found = values(rows)
    assert not [row for row in found.values() if "error" in row]
    assert len([row for row in found.values() if row.get("time_s", 0) > 0]) == 9
    assert found["host call: replay of a CUDA graph"]["not_run"]


def test_facts_of_a_driver_are_not_run_without_one(tmp_path: Path) -> None:
    rows = visit(tmp_path).rows("b")
    with patch.object(convolutions, "run"), patch.object(host_calls, "run"):
        facts.run(visit(tmp_path), rows)
    found = rows.read()
    assert len(found) > 40 and all(row["not_run"] for row in found)


def test_the_league_has_other_steps_than_were_measured_before() -> None:
    steps = league.league_steps()
    language = [step for step in steps if step.step["optimizer"] == "adamw"]
    compiled = [step for step in steps if step not in language and league.is_compiled(step)]
    assert (len(steps), len(language), len(compiled)) == (70, 10, 20)
    assert len({league.name_of(step) for step in steps}) == 70
    known = (ROOT / "experiments" / "validation" / "h200.csv").read_text()
    again = [step for step in steps if f"\n{step.network}," in known]
    assert all(league.is_compiled(step) for step in again)


def test_every_step_of_the_league_is_predicted_on_both_cards() -> None:
    predicted = league.read_predicted()
    assert set(predicted) == {league.name_of(step) for step in league.league_steps()}
    for devices in predicted.values():
        assert set(devices) == set(league.DEVICES)
        assert all(min(numbers.values()) > 0 and len(numbers) == 3 for numbers in devices.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deit_small_patch16_224 128 default eager", "t5_small 16 amp_bf16 eager"])
def test_the_committed_predictions_are_what_is_predicted(name: str) -> None:
    steps = [step for step in league.league_steps() if league.name_of(step) == name]
    both = [replace(step, device=device) for step in steps for device in league.DEVICES]
    for line in league.predicted_rows(both, predict_rows(both)):
        committed = league.read_predicted()[name][line["device"]]
        assert committed == {column: line[column] for column in committed}


@pytest.mark.slow
def test_a_step_of_the_league_is_measured(tmp_path: Path) -> None:
    rows = visit(tmp_path).rows("c")
    league.run(visit(tmp_path), rows)
    found = values(rows)
    assert found["digits_cnn 8 default eager"]["step_time_ms"] > 0
    assert found["digits_cnn 8 default inductor"]["not_run"]


@pytest.mark.slow
def test_every_method_is_measured_with_its_predicted_peak(tmp_path: Path) -> None:
    measure_network(visit(tmp_path), "digits_cnn", 8, None)
    found = {name.split(" ", 2)[2]: row for name, row in values(visit(tmp_path).rows("d")).items()}
    network = Network("digits_cnn", 8, visit(tmp_path), nullcontext())
    assert set(found) == set(systems(network)) and not [row for row in found.values() if "error" in row]
    for name in ("eager", "layrub_hybrid", "vdnn_all", "modnn"):
        assert found[name]["excess_bytes"] == 0 and found[name]["step_time_s"] > 0
    assert found["layrub_hybrid"]["peak_bytes"] < found["eager"]["peak_bytes"] <= found["pytorch"]["peak_bytes"]
    assert "too small" in found["joint 0.3"]["refused"] and found["torch.compile 0.6"]["not_run"]


@pytest.mark.slow
def test_joint_runs_within_its_predicted_peak(tmp_path: Path) -> None:
    rows = visit(tmp_path).rows("f")
    limits.run(visit(tmp_path), rows)
    (held,) = [row for row in rows.read() if "not_run" not in row]
    assert held["fits"] and held["peak_bytes"] == held["limit_bytes"] and not held["has_cap"]


@pytest.mark.slow
def test_programs_that_inductor_compiles_by_itself_have_the_gradients_of_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    batch = (torch.randn(4, 8),), (torch.randint(4, (4,)),)
    network = Network("mlp", 4, visit(tmp_path), nullcontext())
    network.__dict__["workload"] = Workload("mlp", module, nn.CrossEntropyLoss(), *batch)
    found = with_inductor(network, "eager", InductorPrograms(CPU))
    assert found["programs"] == found["compiled"] > 0, found["reasons"]
    assert found["largest_error"] < 1e-5 and found["peak_bytes"] == found["predicted_peak_bytes"]


@pytest.mark.emulated
@pytest.mark.parametrize("letter", PARTS)
def test_every_part_runs_on_the_emulated_gpu(letter: str, tmp_path: Path) -> None:
    words = [str(tmp_path), "--backend", "emulated", "--small", "--parts", letter]
    assert main(arguments(words)) == 0
    found = [json.loads(line) for line in (tmp_path / f"{letter}.jsonl").read_text().splitlines()]
    assert found and not [row for row in found if "error" in row]
    assert any("not_run" not in row for row in found)
    # no program is compiled there, so that each runs call by call
    assert not any(row.get("largest_error") or row.get("excess_bytes") for row in found)
