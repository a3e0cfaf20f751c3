"""Changes to a program that make its step fit where plain PyTorch has no room, each predicted as a step.

Single changes first; where none suffices, the smallest combinations that do. A change that is known not to suffice is
not captured: checkpointing lowers activations alone, and adapters are added to the weights that there are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import inf

from membench.advice.device.advice import Lever
from membench.advice.device.changes import AS_IT_IS, Changes, Kind, are_compatible
from membench.advice.device.planning import PlainNumbers, Target, plain_numbers
from membench.advice.device.processes import Planners
from membench.advice.device.programs import Programs
from membench.advice.pool.work import Work
from membench.advice.pool.workers import Urgency
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import Role, TaskGraph

MOST_CHANGES = 4
"""That are combined."""
MOST_TASKS = 25_000
"""Of all changed programs that are captured, as many as take ten seconds."""
SHOWN = 3
"""The most combinations that are named."""
SHARED = frozenset({Role.WEIGHT, Role.ACCUMULATED, Role.OPTIMIZER_STATE, Role.WEIGHT_GRADIENT, Role.APPLIED_GRADIENT})
"""What ZeRO divides among GPUs."""
NO_TIME = "capturing it takes too long"
"""Why a change is not tried after many others."""


class Levers:
    """The search for changes with which a step fits.

    Args:
        work: at the same time as other work.
        planners: that predict.
        plain: the step as it is.
    """

    def __init__(
        self, work: Work, planners: Planners, programs: Programs, batch_size: int, target: Target, plain: PlainNumbers
    ) -> None:
        self._work, self._planners, self._programs = work, planners, programs
        self._batch_size, self._target = batch_size, target
        self._known: dict[Changes, PlainNumbers] = {AS_IT_IS: plain}
        self._captured = {AS_IT_IS}
        self._not_tried: dict[Changes, str] = {}

    def found(self) -> tuple[Lever, ...]:
        """Return single changes, and where none suffices combinations; those that fit first, the fastest first."""
        changes = self._programs.changes
        levers: list[Lever] = []
        for is_last_resort in (False, True):
            if not any(lever.fits for lever in levers):
                levers += self._predicted(
                    frozenset({change})
                    for change in changes
                    if change.is_last_resort is is_last_resort and change.kind is not Kind.BATCH
                )
        for number in range(2, MOST_CHANGES + 1):
            if any(lever.fits for lever in levers):
                break
            sets = (frozenset(each) for each in combinations(changes, number) if are_compatible(each))
            combined = sorted(self._predicted(sets), key=_order)
            levers += [lever for lever in combined if lever.fits][:SHOWN]
        return tuple(sorted(levers, key=_order))

    def faster(self) -> tuple[Lever, ...]:
        """Return the changes that are made for time, of a step that fits."""
        of_time = (change for change in self._programs.changes if change.kind is Kind.KERNELS)
        return tuple(self._predicted(frozenset({change}) for change in of_time))

    def not_tried(self) -> tuple[str, ...]:
        """Return the changes that were not predicted, and why; those without time left as their number."""
        named = [
            f"{next(iter(changes)).name}: {reason}" for changes, reason in self._not_tried.items() if len(changes) == 1
        ]
        combined = sum(len(changes) > 1 for changes in self._not_tried)
        return (*named, *([f"{combined} combinations: {NO_TIME}"] if combined else []))

    def _predicted(self, sets: Iterable[Changes]) -> list[Lever]:
        waiting = [self._work.start(self._lever, each) for each in sets]
        return [lever for each in waiting if (lever := each.result()) is not None]

    def _lever(self, changes: Changes) -> Lever | None:
        """Return the step with some changes; None: it is not tried."""
        if self._reserves_less_in_vain(changes):
            return None
        least_bytes = self._least_bytes(changes)
        if least_bytes > self._target.room_bytes:
            return self._described(changes, False, least_bytes, None)
        try:
            numbers = self._numbers(changes)
        except MembenchError as error:
            self._not_tried[changes] = str(error)
            return None
        self._known[changes] = numbers
        return self._described(changes, numbers.fits, numbers.peak_bytes, numbers.step_time_s)

    def _numbers(self, changes: Changes) -> PlainNumbers:
        """Capture and predict a changed program.

        Raises:
            MembenchError: it cannot be captured, or there is no time for it.
        """
        program = frozenset(change for change in changes if change.is_captured)
        with self._planners.capturing:
            if program not in self._captured:
                size = len(self._planners.graph(self._batch_size, self._batch_size).tasks)
                if size * len(self._captured) > MOST_TASKS:
                    raise MembenchError(NO_TIME)
                self._captured.add(program)
            update = self._programs.update(changes)
            if update is not None:
                update(self._planners.graph(self._batch_size, self._batch_size, program))
        micro_batch = next((change.micro_batch for change in changes if change.micro_batch), None)
        device = self._target.device
        if allocator := next((change.allocator for change in changes if change.allocator), None):
            device = replace(device, allocator=allocator)
        job = partial(
            plain_numbers,
            batch_size=self._batch_size,
            target=replace(self._target, device=device, update=update),
            micro_batch=micro_batch,
        )
        return self._planners.run(job, self._batch_size, Urgency.LEVER, program)

    def _reserves_less_in_vain(self, changes: Changes) -> bool:
        """Return whether the tensors of a step exceed the memory that its allocator would waste less of."""
        others = frozenset(change for change in changes if change.allocator is None)
        known = self._known.get(others)
        return others != changes and known is not None and known.peak_bytes > self._target.room_bytes

    def _least_bytes(self, changes: Changes) -> int:
        """Return a lower bound on the memory of a changed step, from what is known of others."""
        found = 0
        without = frozenset(change for change in changes if change.kind is not Kind.CHECKPOINTING)
        if known := self._known.get(without):
            found = known.least_bytes
        if any(change.keeps_weights for change in changes):
            of_weights = frozenset(change for change in changes if change.kind is Kind.PRECISION)
            if known := self._known.get(of_weights):
                found = max(found, known.weight_bytes)
        return found

    def _described(self, changes: Changes, fits: bool, peak_bytes: int, step_time_s: float | None) -> Lever:
        ordered = [change for change in self._programs.changes if change in changes]
        return Lever(
            names=tuple(change.name for change in ordered),
            options=tuple(option for change in ordered for option in change.options),
            effects=tuple(change.effect for change in ordered),
            is_exact=all(change.is_exact for change in ordered),
            fits=fits,
            peak_bytes=peak_bytes,
            step_time_s=step_time_s,
        )


def _order(lever: Lever) -> tuple[bool, float, int]:
    return not lever.fits, lever.step_time_s or inf, lever.peak_bytes


def sharded_bytes(graph: TaskGraph, numbers: Sequence[int] = (2, 4, 8)) -> dict[int, int]:
    """Return the share of one GPU of several in weights, gradients and states, by their number (ZeRO's third stage).

    Args:
        graph: with its update.
    """
    shared_bytes = sum(block.size_bytes for block in graph.blocks if block.role in SHARED)
    return {number: -(-shared_bytes // number) for number in numbers}
