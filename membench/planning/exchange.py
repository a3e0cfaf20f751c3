"""Data parallelism as a pass over any strategy's schedule: when the gradients of equal replicas are averaged.

Every process runs the same schedule on a share of the batch, all of one size. Two ways of averaging:

- as made (moDNN, Section 6.2): a weight's gradient leaves as soon as the last instruction that touches it has finished,
  on a stream of its own, beside what the device still computes. Nothing else is synchronised until the step's end.
- at the end (the naive way of moDNN's Section 6.2): all gradients are averaged on one process's device when the
  step's tasks are done.

moDNN's host also updates the weights and sends those back in place of the means: as many bytes, and the means are what
any optimizer can go on from. They take no device memory, so the schedule's peak stays.
"""

from collections import defaultdict
from dataclasses import replace
from enum import StrEnum

from membench.core.errors import UnsupportedStrategy
from membench.core.schedule import (
    COMPUTE_STREAM,
    EXCHANGE_STREAM,
    AllReduce,
    Compute,
    Instruction,
    Offload,
    Prefetch,
    RepeatedSchedule,
    Schedule,
    Wait,
    Work,
)
from membench.planning.validate import validate

ROOT = 0
"""The process on whose device the naive way averages."""


class Exchange(StrEnum):
    """When gradients are averaged over the processes, and where."""

    AS_MADE = "as_made"
    AT_END = "at_end"


def exchange_gradients(schedule: Schedule, exchange: Exchange) -> Schedule:
    """Return the schedule with every weight's gradient averaged over all processes, once, when it is complete.

    Raises:
        UnsupportedStrategy: the step keeps no gradient, because its framework applies each at once.
    """
    last_uses = _last_uses(schedule)
    if not last_uses:
        raise UnsupportedStrategy(
            f"{schedule.graph.name} keeps no gradient that processes could exchange; choose another framework"
        )
    is_early = exchange is Exchange.AS_MADE
    after = last_uses if is_early else dict.fromkeys(last_uses, _last_work(schedule))
    due: defaultdict[int, list[int]] = defaultdict(list)  # instruction -> gradients that leave after it
    for block, instructions in after.items():
        due[max(instructions.values())].append(block)
    program = _Program(None if is_early else ROOT)
    for index, instruction in enumerate(schedule.instructions):
        program.keep(instruction)
        for block in due[index]:
            program.average(block, after[block])
    return replace(schedule, instructions=program.finish())


def exchange_in_last_run(
    parts: tuple[RepeatedSchedule, ...], exchange: Exchange
) -> tuple[RepeatedSchedule, ...]:
    """Return a validated step whose last run exchanges the gradients, to which every micro-batch has added by then."""
    *before, last = parts
    if last.count > 1:
        before.append(replace(last, count=last.count - 1))
    exchanging = exchange_gradients(last.schedule, exchange)
    validate(exchanging)
    return (*before, RepeatedSchedule(exchanging))


def _last_uses(schedule: Schedule) -> dict[int, dict[str, int]]:
    """Return for each gradient, by stream, the last instruction that touches it; gradients in the order of completion."""
    gradients = {value.block for _, value in schedule.graph.gradients if value}
    uses: dict[int, dict[str, int]] = {}
    for index, instruction in enumerate(schedule.instructions):
        match instruction:
            case Compute(task, stream):
                touched = {*schedule.graph.tasks[task].reads, *schedule.graph.tasks[task].writes}
            case Offload(block, stream) | Prefetch(block, stream):
                touched = {block}
            case _:
                continue
        for block in sorted(touched & gradients):
            uses[block] = {**uses.pop(block, {}), stream: index}
    return uses


def _last_work(schedule: Schedule) -> dict[str, int]:
    """Return each stream's last instruction."""
    return {item.stream: index for index, item in enumerate(schedule.instructions) if isinstance(item, Work)}


class _Program:
    """A schedule's instructions, numbered anew as exchanges are put between them."""

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._instructions: list[Instruction] = []
        self._position: list[int] = []  # of each of the schedule's instructions
        self._waited: dict[str, int] = {}  # stream -> the instruction that the exchange has waited for
        self._last_exchange: int | None = None

    def keep(self, instruction: Instruction) -> None:
        if isinstance(instruction, Wait):
            instruction = replace(instruction, instruction=self._position[instruction.instruction])
        self._position.append(len(self._instructions))
        self._instructions.append(instruction)

    def average(self, block: int, after: dict[str, int]) -> None:
        """Exchange a gradient after instructions of other streams.

        Args:
            after: by stream.
        """
        for stream, index in after.items():
            if self._waited.get(stream, -1) < index:
                self._instructions.append(Wait(EXCHANGE_STREAM, self._position[index]))
                self._waited[stream] = index
        self._last_exchange = len(self._instructions)
        self._instructions.append(AllReduce(block, self._root))

    def finish(self) -> tuple[Instruction, ...]:
        if self._last_exchange is not None:
            self._instructions.append(Wait(COMPUTE_STREAM, self._last_exchange))
        return tuple(self._instructions)
