"""Rows that anyone measures on their own card: a fixed set of steps, with peaks, times, versions and a hash."""

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from membench.conformance import planners
from membench.conformance.recorded_files import PLANNERS, ROWS, Refused, read_recorded, write_recorded

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
    from membench.sweep.results.provenance import device_facts

    steps = [_measured(step, backend) for step in STEPS]
    write_recorded(path, ROWS, {"backend": backend, "device": device_facts(backend), "steps": steps})


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


def complaints(path: Path) -> Iterator[str]:
    """Yield the reasons for which a file, of a planner as well, is refused; none: it is accepted.

    Raises:
        MembenchError: the package that reads schemas is not installed.
    """
    try:
        name, content = read_recorded(path)
    except Refused as error:
        yield str(error)
        return
    yield from planners.complaints(content) if name == PLANNERS else _complaints(content)


def _complaints(content: Mapping[str, Any]) -> Iterator[str]:
    if [_of(step) for step in content["steps"]] != list(STEPS):
        yield "its steps are not the fixed set: " + ", ".join(map(_name, STEPS))
        return
    memory_bytes = content["device"].get("device_memory_bytes", inf)
    for step in content["steps"]:
        yield from (f"{_name(_of(step))}: {reason}" for reason in _complaints_about_step(step, memory_bytes))


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
