"""An advice as text, as values for JSON and tables, and as the lines of code that use it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from membench.advice.device.advice import PLAIN, Advice, AdvisedPlan, Lever, Refusal
from membench.advice.overlaps import overlaps
from membench.core.document import Code, Element, Facts, Table
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.units import format_bytes, format_seconds, per_second
from membench.steps.predicted.intervals import INSIDE, MEMORY, TIME, chance_in_words, in_words, ratios_of
from membench.steps.predicted.text import host_waits_in_words, parts_in_words

HEADER = (
    "method", "peak", "step time", "samples/s", "copied", "exposed", "gap", "host memory", "parts", "largest batch",
)  # fmt: skip
EXPANDABLE = str(AllocatorSettings(expandable_segments=True))
_NAMES = 14
"""Characters of the column of names."""
LAYERS = 3
"""How many layers' activations are named."""
_DEVICE = 'backend="cuda" if torch.cuda.is_available() else "cpu"'


def elements(advice: Advice) -> Iterator[Element]:
    """Yield the advice as it is printed."""
    yield from plain_elements(advice)
    yield from further_elements(advice)


def plain_elements(advice: Advice) -> Iterator[Element]:
    """Yield what is known of plain PyTorch before anything else is planned."""
    yield ", ".join(step_words(advice))
    yield Facts(tuple(plain_facts(advice)), _NAMES)


def further_elements(advice: Advice) -> Iterator[Element]:
    """Yield what follows plain PyTorch's."""
    yield Facts(tuple(searched_facts(advice)), _NAMES)
    yield ""
    if advice.fastest:
        yield f"Fastest: {fastest_words(advice)}"
    if advice.is_plain_alone:
        yield from nothing_to_change(advice)
    else:
        yield from _of_methods(advice)
    yield from ("", "How far to trust it (all of it is simulated):", *(f"  {line}" for line in trust(advice)))


def fastest_words(advice: Advice) -> str:
    """Return the fastest way to compute the step, with its time and memory."""
    way = advice.fastest
    if isinstance(way, Lever):
        return (
            f"{' + '.join(way.names)}, {format_seconds(way.step_time_s or 0.0)}, {format_bytes(way.peak_bytes)} "
            f"({' '.join(way.options)})"
        )
    assert way is not None
    name = "plain PyTorch" if way.name == PLAIN else way.name
    return f"{name}, {format_seconds(way.step_time_s)}, {format_bytes(way.peak_bytes)}"


def nothing_to_change(advice: Advice) -> Iterator[str]:
    """Yield sentences where plain PyTorch fits and no other method was planned."""
    nothing = "Nothing else to change" if isinstance(advice.fastest, Lever) else "Nothing to change"
    yield f"{nothing}: plain PyTorch fits, and methods that save memory seldom save time."
    yield "For a larger batch or less memory: methods=all"


def _of_methods(advice: Advice) -> Iterator[Element]:
    if advice.plans:
        yield "Methods that fit, the fastest first:"
        yield Table(tuple(cells(advice.plans)))
        if idle := [_with_largest(plan.name, "", plan) for plan in advice.plans if plan.is_idle][1:]:
            yield f"  with nothing to offload, recompute or encode, the same: {', '.join(idle)}"
    else:
        yield "No method fits."
    times = ((plan.name, advice.time_interval_s(plan)) for plan in _shown(advice.plans))
    yield from (f"  {line}" for line in overlaps(times))
    if any(not each.is_exact for each in advice.plans):
        yield "  * other results than plain PyTorch's: numbers are rounded, or batch norm sees parts of the batch"
    yield from (f"  {line}" for line in needs(advice))
    if not advice.fits and (advice.levers or advice.not_tried):
        yield from ("", "What would make it fit under plain PyTorch:")
        yield Table(tuple(lever_cells(advice.levers)))
        yield from (f"  {line}" for line in further(advice))
    if best := advice.best:
        yield from ("", f"The fastest one that gives plain PyTorch's results, {best.name}:", "")
        yield Code(tuple(code(advice, best)))


def code(advice: Advice, plan: AdvisedPlan) -> list[str]:
    """Return the lines of a program that use a plan, with ``model``, ``inputs`` and, to train, a criterion and targets.

    It has an ``optimizer`` too, an instance over the model's weights, if the step updates them.
    """
    if not advice.update_runs:
        return ["# an update in the backward pass, or with averages, is simulated only: compile without the optimizer"]
    of_step = {"host_memory": advice.host_memory_bytes, "precision": advice.precision}
    given = plan.options | {name: value for name, value in of_step.items() if value is not None}
    options = [
        *(f"{name}={value!r}" for name, value in given.items()),
        *(["optimizer=optimizer"] if advice.optimizer else []),
        *(["channels_last=True"] * advice.channels_last),
    ]
    device = 'kernels="inductor", backend="cpu"' if advice.is_compiled else _DEVICE
    head = ["# compiled kernels run under a method on the CPU alone; on a GPU it is simulated"] * advice.is_compiled
    batch = ["criterion", "(inputs, targets)"] if advice.trains else ["None", "(inputs, ())"]
    arguments = ", ".join(["model", *batch, *options, device])
    call = "loss = step(inputs, targets)" if advice.trains else "output = step(inputs)"
    head += environment(advice.allocator)
    return [*head, "import torch, membench", f"step = membench.compile({arguments})", call]


def environment(allocator: str) -> list[str]:
    """Return the comment of code that PyTorch's allocator has these settings; none without any."""
    return [f"# with PYTORCH_ALLOC_CONF={allocator}"] if allocator else []


def trust(advice: Advice) -> list[str]:
    """Return sentences on how far published measurements differ from such predictions."""
    plain = advice.plain
    time, memory = (
        "{:.2f} to {:.2f}".format(*ratios_of(quantity, plain.kind).interval(1.0)) for quantity in (TIME, MEMORY)
    )
    found = (
        f"{INSIDE:.0%} of published steps of this kind ({plain.kind}) took {time} times the predicted time, and "
        f"{memory} times the predicted memory (results/validation/README.md)."
    )
    kernels = ", ".join(plain.priced_by_bytes)
    unknown = [f"Kernels of libraries, priced by the bytes that they move alone: {kernels}."] if kernels else []
    return [found, *unknown, *plain.unpredicted]


def values(advice: Advice) -> dict[str, Any]:
    """Return the advice as values that JSON has; bytes and seconds are in the names."""
    plain = advice.plain
    head = (
        "model", "device", "batch_size", "precision", "optimizer", "is_compiled", "machine", "allocator",
        "budget_bytes", "fits", "allocated_bytes", "reserved_bytes", "used_bytes", "capacity_bytes",
        "fragmentation_bytes", "besides_bytes", "step_time_s", "largest_batch",
    )  # fmt: skip
    return {
        **{name: getattr(advice, name) for name in head},
        "step_time_interval_s": plain.step_time_interval_s,
        "shown_interval_bytes": plain.shown_interval_bytes,
        "fit_probability": plain.fit_probability,
        "host_waits_s": plain.host_waits_s,
        "parts_bytes": dict(advice.parts_bytes),
        "activations_bytes": dict(advice.activations_bytes),
        "recomputes": advice.recomputes,
        "in_its_memory": advice.in_its_memory and _plan_values(advice, advice.in_its_memory),
        "in_its_time": advice.in_its_time and _plan_values(advice, advice.in_its_time),
        "plans": [_plan_values(advice, plan) for plan in advice.plans],
        "levers": [asdict(lever) for lever in advice.levers],
        "not_tried": advice.not_tried,
        "sharded_bytes": dict(advice.sharded_bytes),
        "refused": {name: asdict(each) for name, each in advice.refused.items()},
        "code": code(advice, advice.best) if advice.best else [],
        "trust": trust(advice),
    }


def rows(advice: Advice) -> Iterator[dict[str, Any]]:
    """Yield the methods that fit as rows of numbers, the fastest first, those that change nothing included."""
    for found in values(advice)["plans"]:
        low_s, high_s = found.pop("step_time_interval_s")
        parts = " + ".join(f"{part['count']} x {part['samples']}" for part in found.pop("micro_batches"))
        yield {**found, "step_time_low_s": low_s, "step_time_high_s": high_s, "micro_batches": parts}


def _plan_values(advice: Advice, plan: AdvisedPlan) -> dict[str, Any]:
    names = (
        "name", "peak_bytes", "reserved_bytes", "used_bytes", "budget_bytes", "step_time_s", "samples_per_s",
        "copied_bytes", "exposed_copy_time_s", "host_bytes", "micro_batch", "gap", "is_exact", "is_idle",
        "moves_weights", "divides_batch", "largest_batch", "larger_may_fit",
    )  # fmt: skip
    parts = [{"samples": samples, "count": count} for samples, count in plan.micro_batches]
    values = {name: getattr(plan, name) for name in names}
    return {**values, "step_time_interval_s": advice.time_interval_s(plan), "micro_batches": parts}


def step_words(advice: Advice) -> list[str]:
    """Return the step in words."""
    inside = "" if advice.machine is None else f" in machine {advice.machine}"
    return [
        advice.model,
        f"batch {advice.batch_size}",
        *([advice.precision] if advice.precision else []),
        *(["compiled"] * advice.is_compiled),
        *([advice.optimizer or "no optimizer"] if advice.trains else []),
        f"simulated on {advice.device}{inside}",
        *([advice.allocator] if advice.allocator else []),
        *([f"budget {format_bytes(advice.budget_bytes)}"] if advice.budget_bytes else []),
    ]


def plain_facts(advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield the names and values of plain PyTorch's prediction."""
    room = f"in {format_bytes(advice.capacity_bytes)}"
    if advice.budget_bytes is not None:
        room = f"a budget of {format_bytes(advice.budget_bytes)} (the device has {format_bytes(advice.capacity_bytes)})"
    program = "your program" if advice.recomputes else "plain PyTorch"
    chance = chance_in_words(advice.plain.fit_probability) if advice.budget_bytes is None else ""
    yield program, (f"fits {room}" if advice.fits else f"does not fit {room}") + chance
    yield "allocated", format_bytes(advice.allocated_bytes)
    yield "made up of", parts_in_words(advice.plain)
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
            f"{format_bytes(advice.used_bytes)}, {in_words(advice.plain.shown_interval_bytes, format_bytes)}; "
            f"{format_bytes(advice.besides_bytes or 0)} of it besides the step",
        )
    yield (
        "step time",
        f"{format_seconds(advice.step_time_s)}, {in_words(advice.plain.step_time_interval_s, format_seconds)}; "
        f"{per_second(advice.batch_size, advice.step_time_s):,.1f} samples/s",
    )
    if waits := host_waits_in_words(advice.plain):
        yield "waits", waits
    if advice.plain.depends_on_values:
        yield "holds for", "this batch: sizes depend on its values"


def searched_facts(advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what is searched for at plain PyTorch's batch and beyond."""
    if advice.largest_batch is not None:
        yield "largest batch", f"{advice.largest_batch:,}"
    yield from _in_place_of_regions(advice)


def _in_place_of_regions(advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield what the memory, and what the time, of a program that recomputes would give."""
    if not advice.recomputes:
        return
    yield "recomputes", "as torch.utils.checkpoint has it; all methods but pytorch plan the step without that"
    if not advice.fits:
        return
    memory, time = advice.in_its_memory, advice.in_its_time
    yield (
        "in its memory",
        "no plan of joint" if memory is None else f"joint takes {format_seconds(memory.step_time_s)}",
    )
    yield ("in its time", "no plan of joint" if time is None else f"joint needs {format_bytes(time.peak_bytes)}")


def cells(plans: Sequence[AdvisedPlan]) -> list[tuple[str, ...]]:
    """Return the rows of the table, its header first; of methods that change nothing, the fastest stands for all."""
    return [HEADER, *map(_row, _shown(plans))]


def _shown(plans: Sequence[AdvisedPlan]) -> list[AdvisedPlan]:
    idle = [plan for plan in plans if plan.is_idle]
    return [plan for plan in plans if plan not in idle[1:]]


LEVER_HEADER = ("change", "peak", "step time", "fits", "option", "effect")


def lever_cells(levers: Sequence[Lever]) -> list[tuple[str, ...]]:
    """Return the rows of the table of changes to the program, its header first."""
    return [LEVER_HEADER, *map(_lever_row, levers)] if levers else []


def _lever_row(lever: Lever) -> tuple[str, ...]:
    predicted = lever.step_time_s is not None
    return (
        " + ".join(lever.names) + ("" if lever.is_exact else " *"),
        f"{'' if predicted else 'at least '}{format_bytes(lever.peak_bytes)}",
        format_seconds(lever.step_time_s) if lever.step_time_s is not None else "",
        "yes" if lever.fits else "no",
        " ".join(lever.options),
        lever.effects[0] if len(lever.effects) == 1 else "",  # each of several has a row of its own
    )


def further(advice: Advice) -> Iterator[str]:
    """Yield what the table of changes leaves out."""
    if any(not lever.is_exact for lever in advice.levers):
        yield "* other results"
    if moved := next((plan for plan in advice.plans if plan.moves_weights), None):
        yield (
            f"without a change to the program: {moved.name}, with {format_bytes(moved.host_bytes)} in host memory, "
            f"takes {format_seconds(moved.step_time_s)}"
        )
    if advice.sharded_bytes:
        shares = ", ".join(f"{number}: {format_bytes(size)}" for number, size in advice.sharded_bytes.items())
        yield f"more GPUs: weights, gradients and states of each, shared evenly by {shares} (arithmetic, not a plan)"
    if advice.not_tried:
        yield "not tried: " + "; ".join(advice.not_tried)


def needs(advice: Advice) -> Iterator[str]:
    """Yield in a line those that need more memory, the least of it first, and in a line each the others."""
    needed = {
        name: each.needed_bytes
        for name, each in advice.refused.items()
        if each.needed_bytes is not None and each.is_planned
    }
    if needed:
        least_first = sorted(needed, key=lambda name: (needed[name], name))
        described = (
            _with_largest(name, f" {format_bytes(needed[name])}", advice.refused[name]) for name in least_first
        )
        yield "need more: " + ", ".join(described)
    if fragmented := sorted(name for name, each in advice.refused.items() if each.is_fragmented):
        grow = "" if EXPANDABLE in advice.allocator else f"; allocator={EXPANDABLE} may waste less"
        yield f"room for what it holds, not for what the allocator reserves: {', '.join(fragmented)}{grow}"
    not_planned: dict[str, list[str]] = {}
    for name, each in sorted(advice.refused.items()):
        if not each.is_planned:
            least = "" if each.needed_bytes is None else f"need at least {format_bytes(each.needed_bytes)}"
            not_planned.setdefault(least or each.reason, []).append(name)
        elif each.needed_bytes is None:
            yield f"{name}: {each.reason}"
    yield from (f"{why}: {', '.join(names)}" for why, names in sorted(not_planned.items()))


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
