"""The operators of a predicted step as a table for a terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from membench.core.document import Element, Table
from membench.core.units import format_seconds

if TYPE_CHECKING:
    from membench.steps.predicted.breakdown import OperatorTime

LEAST_SHARE = 0.001
"""Of the time of all operators: one with less has no line of its own."""


def operator_elements(operators: "Sequence[OperatorTime]", step_time_s: float) -> Iterator[Element]:
    """Yield a table of the operators of a step, which takes so long."""
    total_s = sum(operator.time_s for operator in operators)
    shown = [operator for operator in operators if operator.time_s >= LEAST_SHARE * total_s]
    rows = [("operator", "calls", "time", "share", "TFLOP", "TFLOPS", "GB", "GB/s")]
    for operator in shown:
        amounts = operator.operations / 1e12, operator.moved_bytes / 1e9
        numbers = [f"{amount:,.2f}" if amount else "" for amount in amounts]
        rates = [f"{amount / operator.time_s:,.0f}" if amount else "" for amount in amounts]
        computed, moved = zip(numbers, rates, strict=True)
        time, share = format_seconds(operator.time_s), f"{operator.time_s / total_s:.1%}"
        rows.append((operator.name, f"{operator.calls:,}", time, share, *computed, *moved))
    yield Table(tuple(rows))
    if others := len(operators) - len(shown):
        yield f"  {others} others take less than {LEAST_SHARE:.1%} each"
    sums = f"operators {total_s * 1e3:,.2f} ms, the step {step_time_s * 1e3:,.2f} ms"
    yield f"  {sums}: with launches, copies and waiting, and what overlaps counted once"
