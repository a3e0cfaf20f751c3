"""Numbers in a simulated cell's record: memory, copies and power, and those that a paper's function adds."""

from typing import Any

import pytest

from membench.core import configuration
from membench.core.document import as_text
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.task_graph import Kind
from membench.core.record import Outcome, Record
from membench.strategies.base import Strategy
from membench.strategies.epmc import Epmc
from membench.strategies.gist import Gist
from membench.strategies.vdnn import VdnnAll, VdnnConv
from membench.sweep.cells.metrics import plan_note
from membench.sweep.cells.run import run_cell
from membench.sweep.results.summary import summary
from tests.helpers.planning.chains import chain_of_kinds
from tests.helpers.planning.costs import UnitCost
from tests.helpers.sweep.cells import small_cell


def _metrics(strategy: str, **options: Any) -> dict[str, float]:
    return _record(strategy, **options).metrics


def _record(
    strategy: str,
    *,
    framework: str = "modnn",
    device: str = "k40_modnn",
    paper: str = "",
    backend: str = "simulated",
    **options: Any,
) -> Record:
    cell = {
        "model": configuration.read("model", "cifar10_quick"),
        "batch_size": 8,
        "strategy": configuration.read("strategy", strategy) | options,
        "framework": configuration.read("framework", framework),
        "device": configuration.read("device", device),
        "cluster": configuration.read("cluster", "one"),
        "backend": {"name": backend},
        "seed": 0,
        "metrics": f"experiments.{paper}.metrics.step_metrics" if paper else None,
    }
    return run_cell(cell)


def test_a_bound_without_resident_weights_is_that_of_the_largest_task() -> None:
    """The first pooling's backward: its input of 32 x 32 and its output of a quarter, each with its gradient."""
    metrics = _metrics("network_wide", algorithms="memory", paper="modnn")
    maps_bytes = 4 * 8 * 32 * 32 * 32
    assert metrics["neediest_task_bytes"] == 2 * (maps_bytes + maps_bytes // 4)
    assert metrics["neediest_task_bytes"] < metrics["lower_bound_bytes"] <= metrics["required_memory_bytes"]


def test_what_is_external_leaves_out_the_framework_s_own_memory() -> None:
    """moDNN's program holds the gradients of weights throughout, Caffe the momentum as well."""
    batch_bytes = 8 * (3 * 32 * 32 * 4 + 8)
    for framework, device, copies in (("pytorch", "k40m", 1), ("modnn", "k40_modnn", 2), ("caffe", "k40m", 3)):
        metrics = _metrics("eager", framework=framework, device=device)
        assert metrics["external_bytes"] == copies * metrics["weight_bytes"] + batch_bytes
    assert metrics["overhead_bytes"] > 9e7


def test_transferred_is_what_goes_both_ways() -> None:
    metrics = _metrics("vdnn_all")
    assert metrics["transferred_bytes"] == metrics["offloaded_bytes"] + metrics["prefetched_bytes"] > 0
    assert _metrics("eager")["transferred_bytes"] == 0


def test_convolutions_take_a_part_of_the_computation() -> None:
    metrics = _metrics("vdnn_all")
    assert 0 < metrics["convolution_time_s"] < metrics["compute_time_s"]


def test_power_is_given_for_devices_with_known_power() -> None:
    power = configuration.load("device", "k40_modnn").power
    metrics = _metrics("vdnn_all")
    assert power.awake_w < metrics["average_power_w"] < metrics["maximum_power_w"]
    assert metrics["maximum_power_w"] <= power.compute_w + 2 * power.copy_w
    assert "average_power_w" not in _metrics("vdnn_all", device="k40m")


def test_a_plain_record_has_no_numbers_of_one_paper() -> None:
    plain = _record("vdnn_all")
    assert not plain.layer_metrics
    own = {name: {*_metrics("vdnn_all", paper=name)} - {*plain.metrics} for name in ("vdnn", "modnn", "epmc")}
    assert own["modnn"] == {"neediest_task_bytes"}
    assert {"managed_average_bytes", "first_layer_reuse_s", "feature_images_per_s"} < own["vdnn"]
    assert {"stored_map_bytes", "layer_output_bytes"} < own["epmc"]
    assert not own["vdnn"] & own["epmc"]


def test_numbers_of_layers_are_kept_apart() -> None:
    record = _record("vdnn_all", paper="vdnn")
    assert {"layer_map_bytes:conv1", "forward_bytes_per_s:conv1"} < {*record.layer_metrics}
    assert not any(":" in name for name in record.metrics)


@pytest.mark.slow
def test_a_measured_record_has_a_papers_numbers_of_memory() -> None:
    measured, simulated = (_metrics("vdnn_all", paper="vdnn", backend=name) for name in ("cpu", "simulated"))
    assert "unused_by_any_layer_bytes" in measured and "oracular_compute_time_s" not in measured
    assert {"unused_by_any_layer_bytes", "oracular_compute_time_s"} < {*simulated}


@pytest.mark.parametrize("name", ["experiments.vdnn.metrics.nothing", "nothing.at.all", "nothing"])
def test_a_function_that_does_not_exist_fails_the_cell_with_its_name(name: str) -> None:
    cell = _record("eager").configuration | {"metrics": name}
    record = run_cell(cell)
    assert record.outcome is Outcome.FAILED
    assert record.reason.startswith(f"{name!r} is not a function of any module")


@pytest.mark.parametrize(("strategy", "budget"), [("vdnn_inference", None), ("mmcnn", "40 MB")])
def test_sizes_are_not_negative_where_weights_are_in_host_memory(strategy: str, budget: str | None) -> None:
    cell = small_cell(
        model=configuration.read("model", "alexnet_deploy"),
        batch_size=1,
        strategy=configuration.read("strategy", strategy),
        framework=configuration.read("framework", "pytorch"),
        budget=budget,
        metrics="experiments.vdnn.metrics.step_metrics",
    )
    metrics = run_cell(cell).metrics
    assert metrics["convolution_weight_bytes"] > 0
    assert {name: value for name, value in metrics.items() if value < 0} == {}


@pytest.mark.parametrize("strategy", [VdnnConv(), VdnnAll(), Epmc(), Gist()], ids=lambda item: item.name)
def test_a_method_that_finds_nothing_to_do_has_a_note(strategy: Strategy) -> None:
    graph = chain_of_kinds(Kind.LINEAR, Kind.ACTIVATION, Kind.LINEAR)
    schedule = strategy.schedule(graph, UnitCost(), None)
    expected = "nothing is offloaded, recomputed or encoded"
    assert schedule.note == expected and expected in str(schedule)
    assert plan_note((RepeatedSchedule(schedule),)) == f"{strategy.name} found nothing to do: {expected}"
    assert plan_note((RepeatedSchedule(schedule, count=2),)) == ""


def test_the_note_is_in_the_record_and_its_summary() -> None:
    record = _record("vdnn_dyn", framework="pytorch")  # without a budget, it takes the fastest policy: none
    assert record.note.startswith("vdnn_dyn found nothing to do: ")
    assert record.note in as_text(summary(record)).splitlines()[1]
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize("strategy", ["eager", "pytorch", "best_fit", "epmc", "layrub_intra", "vdnn_conv"])
def test_a_step_without_a_method_and_a_method_that_does_something_have_no_note(strategy: str) -> None:
    record = _record(strategy, framework="pytorch")
    assert record.outcome is Outcome.OK
    assert record.note == "" and '"note"' not in record.to_json()


def _card_record(**changes: object) -> Record:
    cell = small_cell(
        strategy=configuration.read("strategy", "eager"),
        framework=configuration.read("framework", "pytorch"),
        device=configuration.read("device", "rtx3090"),
        **changes,
    )
    return run_cell(cell)


def test_a_card_s_record_has_three_columns_of_memory() -> None:
    metrics = _card_record().metrics
    context_bytes = configuration.read("device", "rtx3090")["context_bytes"]
    assert metrics["allocated_bytes"] == metrics["required_memory_bytes"] == metrics["peak_memory_bytes"]
    assert metrics["allocated_bytes"] <= metrics["reserved_bytes"]
    assert metrics["used_bytes"] == metrics["reserved_bytes"] + context_bytes
    assert f"{metrics['used_bytes']:,.0f} bytes" in as_text(summary(_card_record()))


def test_settings_of_the_allocator_change_what_is_reserved_alone() -> None:
    default, expandable = (
        _card_record(batch_size=512, **each).metrics for each in ({}, {"allocator": "expandable_segments:True"})
    )
    assert expandable["allocated_bytes"] == default["allocated_bytes"]
    assert expandable["reserved_bytes"] != default["reserved_bytes"]


@pytest.mark.parametrize(("framework", "device"), [("caffe", "rtx3090"), ("pytorch", "k40m")])
def test_a_paper_s_framework_or_a_card_without_a_known_context_has_one_column(framework: str, device: str) -> None:
    cell = small_cell(framework=configuration.read("framework", framework), device=configuration.read("device", device))
    assert not {"allocated_bytes", "reserved_bytes", "used_bytes"} & run_cell(cell).metrics.keys()


def test_a_step_that_leaves_no_room_for_the_context_is_out_of_memory() -> None:
    metrics = _card_record().metrics
    small = configuration.read("device", "rtx3090") | {"memory_bytes": int(metrics["used_bytes"])}
    cell = small_cell(
        strategy=configuration.read("strategy", "eager"),
        framework=configuration.read("framework", "pytorch"),
        device=small,
    )
    assert run_cell(cell).outcome is Outcome.OK
    record = run_cell(cell | {"device": small | {"memory_bytes": int(metrics["allocated_bytes"]) + 2**20}})
    assert record.outcome is Outcome.OUT_OF_MEMORY
    assert record.metrics["used_bytes"] == metrics["used_bytes"]
