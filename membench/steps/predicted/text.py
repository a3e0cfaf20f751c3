"""A prediction as text, and as values for JSON and tables."""

import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from math import inf
from typing import Any

from membench.core.document import Element, Facts
from membench.core.units import format_bytes, format_seconds
from membench.steps.predicted.intervals import chance_in_words, in_words
from membench.steps.predicted.prediction import Prediction

LEAST_HOST_WAITS = 0.05
"""Fraction of a step from which on it is worth a line that the device waits for the host."""

_FIRST, _BEHIND = ("model", "precision", "optimizer"), ("kind", "stages", "parts_bytes")
"""Attributes that stand first, and those behind all others."""


def elements(prediction: Prediction) -> Iterator[Element]:
    """Yield the prediction as it is printed."""
    yield headline(prediction, prediction.optimizer or ("" if prediction.kind.trains else "inference"))
    yield Facts((*facts(prediction), ("throughput", f"{prediction.samples_per_s:,.1f} samples/s")))


def headline(prediction: Prediction, update: str, inside: str = "", *others: str) -> str:
    """Return what was predicted.

    Args:
        update: what updates the weights, in words; empty: not said.
        inside: follows the device's name.
        others: further words.
    """
    parts = (prediction.model, f"batch {prediction.batch_size}", prediction.precision, update)
    return ", ".join(filter(None, (*parts, f"predicted for {prediction.device}{inside}", *others)))


def facts(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a prediction."""
    capacity, chance = format_bytes(prediction.capacity_bytes), chance_in_words(prediction.fit_probability)
    yield "fits", (f"yes, in {capacity}" if prediction.fits else f"no, not in {capacity}") + chance
    yield "allocated", _exact(prediction.allocated_bytes)
    yield "made up of", parts_in_words(prediction)
    interval = f", {in_words(prediction.shown_interval_bytes, format_bytes)}"
    is_known = prediction.used_bytes is not None
    yield "reserved", _exact(prediction.reserved_bytes) + ("" if is_known else interval)
    if prediction.used_bytes is None:
        yield "used", "not known: conf/device has no context_bytes for this device"
    else:
        yield "used", _exact(prediction.used_bytes) + interval
    if prediction.host_bytes:
        yield "host memory", _exact(prediction.host_bytes)
    of_time = in_words(prediction.step_time_interval_s, format_seconds)
    yield "step time", f"{format_seconds(prediction.step_time_s)}, {of_time}"
    if waits := host_waits_in_words(prediction):
        yield "waits", waits
    if prediction.depends_on_values:
        yield "holds for", "this batch: sizes depend on its values"
    if prediction.priced_by_bytes:
        yield ("priced by bytes", f"{', '.join(prediction.priced_by_bytes)} (register_flop_formula adds operations)")
    for sentence in prediction.unpredicted:
        yield "not predicted", sentence


def parts_in_words(prediction: Prediction) -> str:
    """Return what the allocated peak consists of, the largest part first."""
    parts = sorted(prediction.parts_bytes.items(), key=lambda part: -part[1])
    return " + ".join(f"{format_bytes(size)} of {name}" for name, size in parts)


def host_waits_in_words(prediction: Prediction) -> str:
    """Return for how long the device waits for the host, as text; empty where that hardly matters."""
    share = prediction.host_waits_s / (prediction.step_time_s or inf)
    if share < LEAST_HOST_WAITS:
        return ""
    return (
        f"{format_seconds(prediction.host_waits_s)} of it ({share:.0%}) for the host to issue kernels: larger batches, "
        "compiled kernels or a CUDA graph take less"
    )


def values(prediction: Prediction) -> dict[str, Any]:
    """Return the prediction as values that JSON has; bytes and seconds are in the names."""
    names = [each.name for each in fields(prediction) if each.name not in _FIRST + _BEHIND]
    return {
        **{name: getattr(prediction, name) for name in (*_FIRST, *names)},
        "samples_per_s": prediction.samples_per_s,
        "shown_interval_bytes": prediction.shown_interval_bytes,
        "step_time_interval_s": prediction.step_time_interval_s,
        "fit_probability": prediction.fit_probability,
        "parts_bytes": dict(prediction.parts_bytes),
        "kind": asdict(prediction.kind),
        "stages": [values(stage) for stage in prediction.stages],
    }


def rows(prediction: Prediction) -> Iterator[dict[str, Any]]:
    """Yield the prediction as a row of numbers; of a pipeline, one for each rank."""
    for stage in prediction.stages or (prediction,):
        found = values(stage)
        flat = {name: value for name, value in found.items() if not isinstance(value, dict | list | tuple)}
        bounds = {
            f"{name}_{end}_{unit}": bound
            for name, unit in (("shown", "bytes"), ("step_time", "s"))
            for end, bound in zip(("low", "high"), found[f"{name}_interval_{unit}"], strict=True)
        }
        parts = {f"{re.sub(r'[^a-z]+', '_', name)}_bytes": size for name, size in stage.parts_bytes.items()}
        yield flat | bounds | parts


def _exact(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"
