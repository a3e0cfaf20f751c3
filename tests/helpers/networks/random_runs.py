"""Random modules against plain PyTorch: the same bits, and the predicted peak to the byte.

    python -m tests.helpers.networks.random_runs 1000 --seed 7

runs that many cases from a seed on, prints each difference with the smallest case that still shows it, and exits with 1
if there is one.
"""

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import membench
from membench.capture.capture import Captures
from membench.conformance.results import Results
from membench.conformance.steps import has_parallel_tasks
from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.core.graph.task_graph import Mode, Role
from membench.core.libraries.shared_memory import distinct_bytes
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.compile import build_step
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.request import StepRequest
from membench.strategies.base import Strategy, strategies
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_modules import Case, RandomModule, loss_of, random_case

STEPS = 3
TRAINING = [name for name, strategy in strategies().items() if Mode.TRAINING in strategy.modes and name != "auto"]
"""Strategies; ``auto`` is one of them, and tries all."""


class Refused(Exception):
    """A case that plain PyTorch refuses, or that is refused in a sentence."""


@dataclass(frozen=True)
class _Step:
    """Results of one step: loss, gradients and buffers, and outputs and gradients of inputs."""

    results: Results
    others: tuple[Tensor | None, ...]


def difference(case: Case) -> str:
    """Run a case, and return what differs from plain PyTorch or from the prediction; empty if nothing does.

    Raises:
        Refused: see there.
    """
    module = case.module()
    plain = copy.deepcopy(module)
    if case.aliases:
        plain.first = plain.get_buffer("mean")[:2]
    try:
        expected = [_plain_step(case, plain, step) for step in range(STEPS)]
    except (RuntimeError, IndexError) as error:
        raise Refused("plain PyTorch") from error
    try:
        return _compiled(case, module, expected) if case.entry == "compile" else _wrapped(case, module, expected)
    except MembenchError as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def _plain_step(case: Case, module: Any, step: int) -> _Step:
    """Run a step of a plain or a wrapped module."""
    inputs, targets = case.arguments(module, step)
    for weight in module.parameters():
        weight.grad = None
    torch.manual_seed(step)
    outputs = module(*inputs)
    loss = loss_of(outputs, *targets)
    loss.backward()
    made = tuple(each.detach().clone() for each in tree_leaves(outputs))
    found = _Step(_results(module, loss), (*made, inputs[0].grad))
    for weight in module.parameters():
        weight.grad = None
    return found


def _results(module: RandomModule, loss: Tensor) -> Results:
    gradients = {
        name: None if weight.grad is None else weight.grad.clone(memory_format=torch.contiguous_format)
        for name, weight in module.named_parameters()
    }
    return Results(loss.detach().clone(), gradients, {n: b.clone() for n, b in module.named_buffers()})


def _strategy(case: Case) -> Strategy:
    return strategies()[case.strategy]()


def _in_turn(case: Case, run: Any) -> Iterator[Any]:
    """Yield the results of a function of each step's number, from the second on in a thread if the case says so."""
    with ThreadPoolExecutor(1) as thread:
        for step in range(STEPS):
            yield thread.submit(run, step).result() if case.in_thread and step else run(step)


def _budget(case: Case, schedule: Any) -> int:
    lowest_bytes = schedule.graph.lower_bound_bytes
    return lowest_bytes + round((case.room or 0) * max(0, schedule.peak_bytes - lowest_bytes))


def _compiled(case: Case, module: RandomModule, expected: list[_Step]) -> str:
    inputs, targets = case.arguments(module, 0)
    work = Workload("random", module, loss_of, inputs, targets)
    captures = Captures(work)
    step = build_step(captures, COST, StepRequest(_strategy(case)))
    budget_bytes = None
    if case.room is not None:
        budget_bytes = _budget(case, step.plan[0].schedule)
        with suppress(InfeasibleSchedule):
            within = build_step(captures, COST, StepRequest(_strategy(case), budget_bytes))
            step.close()
            step = within
    schedule = step.plan[0].schedule
    if not isinstance(step, CompiledStep):
        step.close()
        raise Refused("micro-batches, which compute something else")

    def run(number: int) -> _Step:
        inputs, targets = case.arguments(module, number)
        module.zero_grad(set_to_none=True)
        torch.manual_seed(number)
        loss = step(inputs, targets)
        return _Step(_results(module, loss), ())

    try:
        for number, found in enumerate(_in_turn(case, run)):
            if text := _compared(expected[number].results, found.results, schedule.rounding):
                return f"step {number}: {text}"
        module.zero_grad(set_to_none=True)
        held_bytes = step.held_bytes(work.inputs, work.targets)
        measured_bytes = held_bytes + cpu_peak_bytes(lambda: step(work.inputs, work.targets), step.backends)
        return _of_peak(measured_bytes, schedule, budget_bytes if step.predicted_peak_bytes == budget_bytes else None)
    finally:
        step.close()


def _wrapped(case: Case, module: RandomModule, expected: list[_Step]) -> str:
    wrapped: Any = membench.wrap(module, strategy=_strategy(case))
    wrapped.wrapped_calls._cost = COST
    try:
        for number, found in enumerate(_in_turn(case, lambda step: _plain_step(case, wrapped, step))):
            *_, step = wrapped.wrapped_calls.steps
            wanted = expected[number]
            if text := _compared(wanted.results, found.results, step.schedule.rounding):
                return f"step {number}: {text}"
            pairs = enumerate(zip(wanted.others, found.others, strict=True))
            if not step.schedule.rounding and (
                places := [place for place, (one, other) in pairs if not _same(one, other)]
            ):
                return f"step {number}: outputs and the gradient of the input, {places}"
        inputs, _ = case.arguments(module, 0)

        def run() -> None:
            outputs = tree_leaves(wrapped(*inputs))  # those without a gradient are held as well
            roots = [each for each in outputs if each.requires_grad]
            torch.autograd.backward(roots, [torch.ones_like(each) for each in roots])

        run()
        for each in (*module.parameters(), inputs[0]):
            each.grad = None
        blocks = step.schedule.graph.blocks
        constant_bytes = sum(each.size_bytes for each in blocks if each.role is Role.CONSTANT)
        state = [*module.parameters(), *module.buffers()]
        given = [each for each in inputs if isinstance(each, Tensor)]
        if any(each.host_location and each.role is Role.WEIGHT for each in blocks):
            return ""  # weights are in host memory
        held_bytes = constant_bytes + distinct_bytes([*state, *given])
        return _of_peak(held_bytes + cpu_peak_bytes(run, step.backends), step.schedule, None)
    finally:
        wrapped.wrapped_calls.close()


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and one.dtype == other.dtype and one.flatten().equal(other.flatten())


def _compared(expected: Results, found: Results, rounding: float) -> str:
    try:
        expected.check(found, rounding=rounding)
    except AssertionError as error:
        return str(error) or "gradients are not close"
    return ""


def _of_peak(measured_bytes: int, schedule: Any, budget_bytes: int | None) -> str:
    if budget_bytes is not None and measured_bytes > budget_bytes:
        return f"measured {measured_bytes:,} bytes within a budget of {budget_bytes:,}"
    is_most = has_parallel_tasks(schedule) and measured_bytes < schedule.peak_bytes
    if measured_bytes == schedule.peak_bytes or is_most:
        return ""
    return f"measured {measured_bytes:,} bytes, predicted {schedule.peak_bytes:,}"


def found_in(case: Case) -> str:
    """Return how a case fails, an unexpected error included; empty if it does not, or is refused."""
    try:
        return difference(case)
    except Refused:
        return ""
    except Exception as error:  # what is not a sentence of membench's is a failure
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def smallest(case: Case) -> Case:
    """Return the smallest case that still fails: without layers and options that it does not need."""
    plain = Case(case.seed, (), case.strategy, case.entry)
    names = [name for name in vars(plain) if name not in ("seed", "layers", "strategy", "entry")]
    shrunk = True
    while shrunk:
        shorter = [replace(case, layers=case.layers[:i] + case.layers[i + 1 :]) for i in range(len(case.layers))]
        simpler = [
            replace(case, **{name: getattr(plain, name)})
            for name in names
            if getattr(case, name) != getattr(plain, name)
        ]
        eager = [replace(case, strategy="eager")] if case.strategy != "eager" else []
        smaller = next((each for each in (*eager, *shorter, *simpler) if found_in(each)), None)
        shrunk = smaller is not None
        case = smaller or case
    return case


def failures(seeds: range, counts: Counter[str]) -> Iterator[str]:
    """Run cases, count what came of them, and yield a line for each that fails."""
    for seed in seeds:
        case = random_case(seed, TRAINING)
        try:
            text = difference(case)
        except Refused as reason:
            counts[f"refused: {str(reason)[:90]}"] += 1
            continue
        except Exception:
            text = found_in(case)
        counts["compared"] += 1
        counts[f"{case.strategy}, {case.entry}"] += 1
        if text:
            least = smallest(case)
            yield f"{case}: {text}\n  smallest: {least}: {found_in(least)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="of cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    found = 0
    try:
        for line in failures(range(options.seed, options.seed + options.count), counts):
            found += 1
            print(line, flush=True)
    except KeyboardInterrupt:
        print("stopped")
    for name, count in counts.most_common():
        print(f"{count:6d} {name}")
    print(f"{found} differences")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
