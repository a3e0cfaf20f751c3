"""An advice on several GPUs as text, and as values for JSON and tables."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from membench.advice.cluster.advice import ClusterAdvice, RankPlan
from membench.advice.cluster.code import TORCHTITAN, program, torchtitan
from membench.advice.cluster.combinations import ROUNDS, Combination
from membench.advice.cluster.search import SHOWN
from membench.advice.overlaps import overlaps
from membench.core.document import Code, Element, Table
from membench.core.units import format_bytes, format_seconds
from membench.steps.predicted.intervals import Interval

ROWS = SHOWN
"""The most combinations that the table has: those that are predicted for certain."""


def elements(advice: ClusterAdvice) -> Iterator[Element]:
    """Yield the advice as it is printed."""
    yield ", ".join(_step(advice))
    yield from (f"  {line}" for line in _fixed(advice))
    yield ""
    if advice.best is None:
        yield from _nothing(advice)
    else:
        yield "Combinations that fit, the fastest first; numbers are those of each GPU:"
        yield Table(tuple(_cells(advice)), keys=3)
        times = ((f"row {number}", _time_interval_s(plan)) for number, plan in enumerate(advice.plans[:ROWS], 1))
        yield from (f"  {line}" for line in overlaps(times))
    yield from (f"  {line}" for line in _left_out(advice))
    if advice.best is not None:
        yield from _code(advice, advice.best.combination)


def _step(advice: ClusterAdvice) -> Iterator[str]:
    yield advice.model
    compiled = f"compiled {advice.compiled}" if advice.compiled else ""
    yield from (each for each in (advice.precision, compiled, advice.optimizer or "no optimizer") if each)
    name = f" of {advice.cluster_name}" if advice.cluster_name else ""
    cluster = advice.cluster
    yield f"simulated on {cluster.devices} x {advice.device}: {cluster.hosts} x {cluster.devices_per_host}{name}"
    if allocator := str(cluster.profile.allocator):
        yield allocator


def _fixed(advice: ClusterAdvice) -> Iterator[str]:
    tokens = "" if advice.tokens is None else f" of {advice.tokens:,} tokens"
    if advice.batch_size is None:
        yield (
            f"samples{tokens}; micro-batches are as large as fits, so that the batch of a step differs between rows; "
            f"{ROUNDS} rounds of them pass a pipeline"
        )
    else:
        number = "1 sample" if advice.batch_size == 1 else f"{advice.batch_size:,} samples"
        yield f"a step has {number}{tokens} for each GPU, in micro-batches of equal size"
    reduced = f", gradients added up in {advice.reduce_dtype}" if advice.reduce_dtype else ""
    yield f"weights are sharded in the precision of the module{reduced}; blocks: {', '.join(advice.classes)}"


def _cells(advice: ClusterAdvice) -> list[tuple[str, ...]]:
    rate = "samples/s" if advice.tokens is None else "tokens/s"
    header = (
        "parallel", "reshard", "checkpointing", "micro-batch", "batch of all", "allocated", "reserved", "used",
        "step time", rate, "MFU", "communication",
    )  # fmt: skip
    return [header, *(_row(advice, plan) for plan in advice.plans[:ROWS])]


def _row(advice: ClusterAdvice, plan: RankPlan) -> tuple[str, ...]:
    combination, prediction = plan.combination, plan.prediction
    rate = f"{plan.samples_per_s:,.2f}" if advice.tokens is None else f"{plan.samples_per_s * advice.tokens:,.0f}"
    return (
        _parallel(combination),
        ("yes" if combination.reshard_after_forward else "no") if combination.shards > 1 else "",
        str(combination.checkpointing).replace("_", " "),
        f"{combination.micro_batch}" + (f" x {combination.accumulate}" if combination.accumulate > 1 else ""),
        f"{combination.global_batch:,}",
        format_bytes(prediction.allocated_bytes),
        format_bytes(prediction.reserved_bytes),
        "" if prediction.used_bytes is None else format_bytes(prediction.used_bytes),
        format_seconds(prediction.step_time_s),
        rate,
        f"{prediction.utilization:.1%}",
        format_seconds(prediction.exposed_communication_s),
    )


def _time_interval_s(plan: RankPlan) -> Interval:
    """Return the bounds of the seconds that a sample takes."""
    low_s, high_s = plan.prediction.step_time_interval_s
    samples = plan.samples_per_s * plan.prediction.step_time_s
    return low_s / samples, high_s / samples


def _parallel(combination: Combination) -> str:
    return " ".join(f"{name} {size}" for name, size in combination.parallel.items()) or "one GPU"


def named(combination: Combination) -> str:
    """Return a combination in words."""
    parts = [
        _parallel(combination),
        f"checkpointing {str(combination.checkpointing).replace('_', ' ')}",
        f"micro-batch {combination.micro_batch}",
    ]
    if not combination.reshard_after_forward:
        parts.insert(1, "without resharding after the forward pass")
    return ", ".join(parts)


def _nothing(advice: ClusterAdvice) -> Iterator[str]:
    yield "No combination fits."
    nearest = advice.nearest
    if nearest is not None:
        least = "at least " if nearest.is_bound else ""
        lacking = (
            format_bytes(nearest.needed_bytes - advice.free_bytes)
            if nearest.needed_bytes > advice.free_bytes
            else "little"
        )
        yield (
            f"  nearest: {named(nearest.combination)}: needs {least}{format_bytes(nearest.needed_bytes)} of "
            f"{format_bytes(advice.free_bytes)}, {lacking} too much"
        )
    number = -(-advice.states_bytes // advice.free_bytes)
    yield (
        f"  weights, gradients and optimizer's states are {format_bytes(advice.states_bytes)}: {number} GPUs or more "
        "have room for them (arithmetic, without activations)"
    )


def _left_out(advice: ClusterAdvice) -> Iterator[str]:
    fitting = len(advice.plans)
    if fitting > ROWS:
        yield f"{fitting - ROWS} more fit, and are slower"
    yield (
        f"searched: {advice.searched} combinations; {advice.too_large} do not fit, {advice.too_large_by_bound} of them "
        f"by a bound on their memory; {advice.too_slow} were not simulated, as a bound on their time exceeds that of "
        "all rows that are shown"
    )
    if advice.failed:
        yield f"{advice.failed} could not be predicted:"
    yield from (f"{name}: {reason}" for name, reason in advice.refused.items())
    if not advice.is_alike:
        yield (
            "a network of few blocks has not the numbers of this one: the bounds by which combinations are left out "
            "are estimates"
        )
    yield (
        "not searched: tensor parallelism over several hosts, expert parallelism together with context or tensor "
        "parallelism, other schedules of a pipeline than 1F1B, offloading, joint"
    )


def _code(advice: ClusterAdvice, combination: Combination) -> Iterator[Element]:
    yield from ("", "The fastest one, in PyTorch:", "")
    yield Code(tuple(program(advice, combination)))
    if options := torchtitan(advice, combination):
        yield from ("", f"and in torchtitan {TORCHTITAN}, of its own model of this size:", "")
        yield Code(tuple(options))


def values(advice: ClusterAdvice) -> dict[str, Any]:
    """Return the advice as values that JSON has; bytes and seconds are in the names."""
    best = advice.best
    return {
        **{
            name: getattr(advice, name)
            for name in (
                "model", "precision", "optimizer", "compiled", "reduce_dtype", "cluster_name", "device", "batch_size",
                "tokens", "fits", "searched", "too_large", "too_large_by_bound", "too_slow", "failed", "is_alike",
                "states_bytes", "free_bytes",
            )
        },
        "nodes": advice.cluster.hosts,
        "gpus": advice.cluster.devices,
        "allocator": str(advice.cluster.profile.allocator),
        "refused": dict(advice.refused),
        "nearest": advice.nearest and asdict(advice.nearest),
        "plans": [_plan_values(advice, plan) for plan in advice.plans],
        "code": program(advice, best.combination) if best else [],
        "torchtitan": torchtitan(advice, best.combination) if best else [],
    }  # fmt: skip


def rows(advice: ClusterAdvice) -> Iterator[dict[str, Any]]:
    """Yield the combinations that fit as rows of numbers, the fastest first."""
    for found in values(advice)["plans"]:
        axes = " ".join(f"{name} {size}" for name, size in found["parallel"].items())
        yield {**found, "parallel": axes}


def _plan_values(advice: ClusterAdvice, plan: RankPlan) -> dict[str, Any]:
    combination, prediction = plan.combination, plan.prediction
    return {
        "parallel": combination.parallel,
        "reshard_after_forward": combination.reshard_after_forward,
        "checkpointing": str(combination.checkpointing),
        "micro_batch": combination.micro_batch,
        "accumulate": combination.accumulate,
        "global_batch": combination.global_batch,
        "allocated_bytes": prediction.allocated_bytes,
        "reserved_bytes": prediction.reserved_bytes,
        "used_bytes": prediction.used_bytes,
        "step_time_s": prediction.step_time_s,
        "samples_per_s": plan.samples_per_s,
        "tokens_per_s": None if advice.tokens is None else plan.samples_per_s * advice.tokens,
        "utilization": prediction.utilization,
        "exposed_communication_s": prediction.exposed_communication_s,
        "host_waits_s": prediction.host_waits_s,
    }
