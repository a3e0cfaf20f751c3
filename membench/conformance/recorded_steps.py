"""Rows that anyone measures on their own card: a fixed set of steps, with peaks, times, versions and a hash.

A file is JSON of the form that rows.schema.json beside this module describes. Its hash tells a file that was changed by
accident or by hand from one that was recorded, not one person's from another's.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from membench.core.errors import MembenchError
from membench.core.files import write_whole

STEPS = tuple(
    {"model": model, "batch_size": batch_size, "strategy": strategy}
    for model, batch_size in (("digits_cnn", 64), ("alexnet", 8), ("resnet50", 4))
    for strategy in ("eager", "joint")
)
"""What is recorded: steps of training in single precision, which a CPU too computes within seconds."""
_TOLERANCE = 1e-9


def record(path: Path, backend: str) -> None:
    """Run each of `STEPS` on this machine, and write them to a file.

    Args:
        backend: ``cpu`` or ``cuda``.

    Raises:
        MembenchError: there is no such backend or no GPU, or a step does not fit.
        OSError: the file cannot be written.
    """
    from membench.sweep.results.provenance import device_facts, provenance

    steps = [_measured(step, backend) for step in STEPS]
    content = {
        "form": schema()["properties"]["form"]["const"],
        "backend": backend,
        "device": device_facts(backend),
        "origin": provenance(),
        "steps": steps,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({**content, "sha256": hash_of(content)}, indent=1) + "\n")


def _measured(step: Mapping[str, Any], backend: str) -> dict[str, Any]:
    from membench.steps.compile import compile as compiled
    from membench.steps.simulated_step import SimulatedStep
    from membench.sweep.cells.model import Model

    work = Model.named(step["model"]).workload(step["batch_size"], seed=0, device="cpu")
    made = compiled(work.module, work.loss, (work.inputs, work.targets), strategy=step["strategy"], backend=backend)
    assert not isinstance(made, SimulatedStep)
    measured = made.measure()
    made.close()
    windows_s = measured.throughput.window_times_s
    return {
        **step,
        "predicted_peak_bytes": made.predicted_peak_bytes,
        "peak_bytes": measured.peak_bytes,
        "step_time_s": measured.step_time_s,
        "steps_per_window": measured.throughput.steps_per_window,
        "window_times_s": list(windows_s),
    }


def hash_of(content: Mapping[str, Any]) -> str:
    """Return the hash of a file's content, its own hash left out."""
    text = json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of rows."""
    return json.loads(Path(__file__).with_name("rows.schema.json").read_text())


def complaints(path: Path) -> Iterator[str]:
    """Yield the reasons for which a file is refused; none: it is accepted.

    Raises:
        MembenchError: the package that reads schemas is not installed.
    """
    try:
        from fastjsonschema import JsonSchemaValueException, validate
    except ImportError as error:
        raise MembenchError("rows are checked with fastjsonschema; run: pip install 'membench[rows]'") from error
    try:
        content = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        yield f"it is not JSON: {error}"
        return
    try:
        validate(schema(), content)
    except JsonSchemaValueException as error:
        found = "" if isinstance(error.value, dict | list) else f", not {error.value!r}"
        yield f"it is not of the schema: {error.message.removeprefix('data.')}{found}"
        return
    if content["sha256"] != hash_of(content):
        yield "its hash is not that of its content: it was changed after it was recorded"
    if [_of(step) for step in content["steps"]] != list(STEPS):
        yield "its steps are not the fixed set: " + ", ".join(map(_name, STEPS))
        return
    memory_bytes = content["device"].get("device_memory_bytes", inf)
    for step in content["steps"]:
        yield from (f"{_name(_of(step))}: {reason}" for reason in _complaints_about_step(step, memory_bytes))


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def _complaints_about_step(step: Mapping[str, Any], memory_bytes: float) -> Iterator[str]:
    if step["peak_bytes"] > memory_bytes:
        yield f"the peak is more than the device's {memory_bytes:,} bytes"
    if step["peak_bytes"] > step["predicted_peak_bytes"]:
        yield "the peak is above the predicted one, which a schedule does not exceed"
    time_s = median(step["window_times_s"]) / step["steps_per_window"]
    if abs(time_s / step["step_time_s"] - 1) > _TOLERANCE:
        yield "its time is not that of the median window"


def _of(step: Mapping[str, Any]) -> dict[str, Any]:
    return {key: step[key] for key in STEPS[0]}


def _name(step: Mapping[str, Any]) -> str:
    return " ".join(map(str, step.values()))
