"""Rows that anyone measures on their own card: a fixed set of steps, with peaks, times, versions and a hash.

A file is JSON, with the keys of `KEYS`. Its hash tells a file that was changed by accident or by hand from one that was
recorded, not one person's from another's.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from membench.core.checks import COUNT, NAME, POSITIVE, Requirement
from membench.core.files import write_whole

STEPS = tuple(
    {"model": model, "batch_size": batch_size, "strategy": strategy}
    for model, batch_size in (("digits_cnn", 64), ("alexnet", 8), ("resnet50", 4))
    for strategy in ("eager", "joint")
)
"""What is recorded: steps of training in single precision, which a CPU too computes within seconds."""
FORM = 1
"""Version of the form; another set of steps is another form."""
KEYS = ("form", "backend", "device", "origin", "steps", "sha256")
_STEP: Mapping[str, Requirement] = {
    "model": NAME,
    "batch_size": COUNT,
    "strategy": NAME,
    "predicted_peak_bytes": COUNT,
    "peak_bytes": COUNT,
    "step_time_s": POSITIVE,
}
_ORIGIN = ("commit", "clean", "versions", "machine", "time")
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
        "form": FORM, "backend": backend, "device": device_facts(backend), "origin": provenance(), "steps": steps,
    }  # fmt: skip
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


def complaints(path: Path) -> Iterator[str]:
    """Yield the reasons for which a file is refused; none: it is accepted."""
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        yield f"it is not JSON: {error}"
        return
    if not isinstance(content, dict) or sorted(content) != sorted(KEYS):
        yield f"its keys are not {', '.join(KEYS)}"
        return
    if content["form"] != FORM:
        yield f"its form is {content['form']!r}, not {FORM}: record it again"
        return
    if content["sha256"] != hash_of(content):
        yield "its hash is not that of its content: it was changed after it was recorded"
    origin, device = content["origin"], content["device"]
    if not isinstance(origin, dict) or not set(_ORIGIN) <= origin.keys() or "torch" not in origin["versions"]:
        yield f"its origin has not all of {', '.join(_ORIGIN)}, the version of torch among them"
    if not isinstance(device, dict) or not NAME.holds(device.get("device")):
        yield "its device has no name"
        return
    yield from _complaints_about_steps(content["steps"], device.get("device_memory_bytes"))


def _complaints_about_steps(steps: Any, memory_bytes: int | None) -> Iterator[str]:
    if not isinstance(steps, list) or [_of(step) for step in steps] != list(STEPS):
        yield "its steps are not the fixed set: " + ", ".join(" ".join(map(str, step.values())) for step in STEPS)
        return
    for step in steps:
        name = " ".join(map(str, _of(step).values()))
        wrong = [key for key, required in _STEP.items() if not required.holds(step.get(key))]
        if wrong:
            yield f"{name}: {wrong[0]} is {_STEP[wrong[0]].description}, not {step.get(wrong[0])!r}"
            continue
        if memory_bytes and step["peak_bytes"] > memory_bytes:
            yield f"{name}: the peak is more than the device's {memory_bytes:,} bytes"
        if step["peak_bytes"] > step["predicted_peak_bytes"]:
            yield f"{name}: the peak is above the predicted one, which a schedule does not exceed"
        windows_s, count = step.get("window_times_s"), step.get("steps_per_window")
        if not windows_s or not COUNT.holds(count) or not all(map(POSITIVE.holds, windows_s)):
            yield f"{name}: it has no windows of steps"
        elif abs(median(windows_s) / count / step["step_time_s"] - 1) > _TOLERANCE:
            yield f"{name}: its time is not that of the median window"


def _of(step: Any) -> dict[str, Any]:
    return {key: step.get(key) for key in STEPS[0]} if isinstance(step, dict) else {}
