"""An advice as text for a terminal, as values for JSON, and as the lines of code that use it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from membench.advice.advice import Advice, AdvisedPlan, Refusal
from membench.core.units import format_bytes, format_seconds
from membench.sweep.listing import table

HEADER = (
    "method", "peak", "step time", "samples/s", "copied", "exposed", "gap", "host memory", "parts", "largest batch",
)  # fmt: skip
LAYERS = 3
"""How many layers' activations are named."""
_DEVICE = 'backend="cuda" if torch.cuda.is_available() else "cpu"'


def lines(advice: Advice) -> Iterator[str]:
    """Yield the advice in lines."""
    yield ", ".join(step_words(advice))
    yield from (f"  {name:<14} {value}" for name, value in facts(advice))
    yield ""
    if advice.plans:
        yield "Methods that fit, the fastest first:"
        yield from table(cells(advice.plans))
        if idle := [_with_largest(plan.name, "", plan) for plan in advice.plans if plan.is_idle][1:]:
            yield f"  with nothing to offload, recompute or encode, the same: {', '.join(idle)}"
    else:
        yield "No method fits."
    if any(not each.is_exact for each in advice.plans):
        yield "  * other results than plain PyTorch's: numbers are rounded, or batch norm sees parts of the batch"
    yield from (f"  {line}" for line in needs(advice))
    if best := advice.best:
        yield from ("", f"The fastest one that gives plain PyTorch's results, {best.name}:", "")
        yield from (f"    {line}" for line in code(advice, best))
    yield from ("", "How far to trust it (all of it is simulated):", *(f"  {line}" for line in trust(advice)))


def code(advice: Advice, plan: AdvisedPlan) -> list[str]:
    """Return the lines that use a plan, for a program that has ``model`` and ``inputs``, and to train ``criterion`` and ``targets``.

    It has an ``optimizer`` too, an instance over the model's weights, if the step updates them.
    """
    if not advice.update_runs:
        return [
            "# an update in the backward pass, or with averages, is simulated only: compile without the optimizer"
        ]
    given = plan.options if advice.precision is None else {**plan.options, "precision": advice.precision}
    options = [
        *(f"{name}={value!r}" for name, value in given.items()),
        *(["optimizer=optimizer"] if advice.optimizer else []),
        *(["channels_last=True"] * advice.channels_last),
    ]
    batch = ["criterion", "(inputs, targets)"] if advice.trains else ["None", "(inputs, ())"]
    arguments = ", ".join(["model", *batch, *options, _DEVICE])
    call = "loss = step(inputs, targets)" if advice.trains else "output = step(inputs)"
    return ["import torch, membench", f"step = membench.compile({arguments})", call]


def trust(advice: Advice) -> list[str]:
    """Return sentences on how far published measurements differ from such predictions."""
    found = [each.sentence() for each in advice.trust]
    none = f"No published measurement of this kind of network, nor of any on the {advice.device}, has been compared."
    kernels = ", ".join(advice.plain.priced_by_bytes)
    unknown = (
        [f"Kernels of libraries, priced by the bytes that they move alone: {kernels}."] if kernels else []
    )
    return [*(found or [none]), *unknown]


def values(advice: Advice) -> dict[str, Any]:
    """Return the advice as values that JSON has; bytes and seconds are in the names."""
    head = (
        "model", "device", "batch_size", "precision", "optimizer", "budget_bytes", "fits", "allocated_bytes",
        "reserved_bytes", "used_bytes", "capacity_bytes", "fragmentation_bytes", "context_bytes", "step_time_s",
        "largest_batch",
    )  # fmt: skip
    return {
        **{name: getattr(advice, name) for name in head},
        "parts_bytes": dict(advice.parts_bytes),
        "activations_bytes": dict(advice.activations_bytes),
        "plans": [_plan_values(plan) for plan in advice.plans],
        "refused": {name: asdict(each) for name, each in advice.refused.items()},
        "code": code(advice, advice.best) if advice.best else [],
        "trust": [{**each.values(), "sentence": each.sentence()} for each in advice.trust],
    }


def _plan_values(plan: AdvisedPlan) -> dict[str, Any]:
    names = (
        "name", "peak_bytes", "reserved_bytes", "used_bytes", "budget_bytes", "step_time_s", "samples_per_s", "copied_bytes",
        "exposed_copy_time_s", "host_bytes", "micro_batch", "gap", "is_exact", "is_idle", "divides_batch", "largest_batch",
        "larger_may_fit",
    )  # fmt: skip
    parts = [{"samples": samples, "count": count} for samples, count in plan.micro_batches]
    return {**{name: getattr(plan, name) for name in names}, "micro_batches": parts}


def step_words(advice: Advice) -> list[str]:
    """Return the step in words."""
    return [
        advice.model,
        f"batch {advice.batch_size}",
        *([advice.precision] if advice.precision else []),
        *([advice.optimizer or "no optimizer"] if advice.trains else []),
        f"simulated on {advice.device}",
        *([f"budget {format_bytes(advice.budget_bytes)}"] if advice.budget_bytes else []),
    ]


def facts(advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield the names and values of plain PyTorch's prediction."""
    room = f"in {format_bytes(advice.capacity_bytes)}"
    if advice.budget_bytes is not None:
        room = f"a budget of {format_bytes(advice.budget_bytes)} (the device has {format_bytes(advice.capacity_bytes)})"
    yield "plain PyTorch", f"fits {room}" if advice.fits else f"does not fit {room}"
    yield "allocated", format_bytes(advice.allocated_bytes)
    parts = sorted(advice.parts_bytes.items(), key=lambda part: -part[1])
    yield "made up of", " + ".join(f"{format_bytes(size)} of {name}" for name, size in parts)
    layers = list(advice.activations_bytes.items())[:LAYERS]
    if layers:
        yield "most of it in", ", ".join(f"{name} ({format_bytes(size)})" for name, size in layers)
    yield (
        "reserved",
        f"{format_bytes(advice.reserved_bytes)}, {format_bytes(advice.fragmentation_bytes)} of it fragmentation",
    )
    if advice.used_bytes is None:
        yield "used", "not known: conf/device has no context_bytes for this device"
    else:
        yield (
            "used",
            f"{format_bytes(advice.used_bytes)}, with a context of {format_bytes(advice.context_bytes or 0)}",
        )
    yield (
        "step time",
        f"{format_seconds(advice.step_time_s)}, {advice.batch_size / advice.step_time_s:,.1f} samples/s",
    )
    if advice.plain.depends_on_values:
        yield "holds for", "this batch: sizes depend on its values"
    if advice.largest_batch is not None:
        yield "largest batch", f"{advice.largest_batch:,}"


def cells(plans: Sequence[AdvisedPlan]) -> list[tuple[str, ...]]:
    """Return the rows of the table, its header first; of methods that change nothing, the fastest stands for all."""
    idle = [plan for plan in plans if plan.is_idle]
    return [HEADER, *(_row(plan) for plan in plans if plan not in idle[1:])]


def needs(advice: Advice) -> Iterator[str]:
    """Yield in a line those that need more memory, the least of it first, and in a line each the others."""
    needed = {
        name: each.needed_bytes for name, each in advice.refused.items() if each.needed_bytes is not None
    }
    if needed:
        least_first = sorted(needed, key=lambda name: (needed[name], name))
        described = (
            _with_largest(name, f" {format_bytes(needed[name])}", advice.refused[name])
            for name in least_first
        )
        yield "need more: " + ", ".join(described)
    for name, each in sorted(advice.refused.items()):
        if each.needed_bytes is None:
            yield f"{name}: {each.reason}"


def _with_largest(name: str, needed: str, outcome: AdvisedPlan | Refusal) -> str:
    """Return a method that has no row, with its largest batch where one was found."""
    largest = _largest(outcome)
    return f"{name}{needed} (largest batch {largest})" if largest else f"{name}{needed}"


def _row(plan: AdvisedPlan) -> tuple[str, ...]:
    return (
        plan.name if plan.is_exact else f"{plan.name} *",
        format_bytes(plan.peak_bytes),
        format_seconds(plan.step_time_s),
        f"{plan.samples_per_s:,.1f}",
        format_bytes(plan.copied_bytes) if plan.copied_bytes else "",
        format_seconds(plan.exposed_copy_time_s) if plan.exposed_copy_time_s else "",
        "" if plan.gap is None else f"{plan.gap:.1%}",
        format_bytes(plan.host_bytes) if plan.host_bytes else "",
        _parts(plan),
        _largest(plan),
    )


def _largest(outcome: AdvisedPlan | Refusal) -> str:
    if isinstance(outcome, AdvisedPlan) and outcome.divides_batch:
        return "any"
    if outcome.largest_batch is None:
        return ""
    or_more = " or more" if isinstance(outcome, AdvisedPlan) and outcome.larger_may_fit else ""
    return f"{outcome.largest_batch:,}{or_more}"


def _parts(plan: AdvisedPlan) -> str:
    """Return the micro-batches: their number and samples; empty for a whole batch."""
    counts = Counter[int]()
    for samples, count in plan.micro_batches:
        counts[samples] += count
    whole = counts == {plan.batch_size: 1}
    return "" if whole else " + ".join(f"{count} x {samples}" for samples, count in counts.items())
