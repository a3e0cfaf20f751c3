from membench.core.record import Outcome, Record, Source
from membench.sweep.results.device_table import device_table, unit_of


def _record(batch_size: int, metrics: dict[str, float], **others: object) -> Record:
    configuration = {"model": {"name": "net"}, "batch_size": batch_size}
    outcome = Outcome.OK if metrics else Outcome.OUT_OF_MEMORY
    return Record(configuration, "hash", Source.MEASURED, outcome, metrics=metrics, **others)  # type: ignore[arg-type]


def test_every_metric_has_a_row_with_its_unit_and_what_is_missing_its_reason() -> None:
    records = [
        ("eager", _record(8, {"images_per_s": 100.0}, absent={"process_memory_bytes": "not reported"})),
        ("layrub", _record(8, {"images_per_s": 80.0})),
        ("eager", _record(16, {}, reason="the step needs 3 GB")),
    ]
    table = device_table("strategies", records)
    rows = {(row["system"], row["batch_size"], row["metric"]): (row["measured_value"], row["reason"]) for row in table}
    assert rows["eager", "8", "process_memory_bytes"] == ("", "not reported")
    assert rows["layrub", "8", "images_per_s_over_eager"] == ("0.8", "")
    assert rows["eager", "16", "outcome"] == ("", "the step needs 3 GB")
    assert ("eager", "16", "images_per_s_over_eager") not in rows


def test_units_are_read_from_names() -> None:
    names = ("peak_memory_bytes", "images_per_s", "step_time_s", "energy_j_per_image", "tasks")
    assert [unit_of(name) for name in names] == ["bytes", "1/s", "s", "J", ""]
