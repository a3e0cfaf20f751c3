"""Data parallelism as a pass over any strategy's schedule: gradients are averaged over equal replicas.

Every process runs the same schedule on an equal share of the batch. There are two exchanges:

- as made (moDNN, Section 6.2): a weight's gradient is exchanged as soon as the last instruction that touches it has
  finished, on a stream of its own, while the device computes. Nothing else is synchronised until the step's end.
- at the end (moDNN's naive exchange, Section 6.2): all gradients are averaged on one process's device when the step's
  tasks are done.

moDNN's host also updates the weights and sends those back in place of the means: as many bytes, and any optimizer can
use the means. They take no device memory, so the schedule's peak does not change. A step that updates its weights does
so with the means: the exchange precedes the update, which waits for it; an exchange at the end precedes one that runs
as a whole.
"""

from collections import defaultdict
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    EXCHANGE_STREAM,
    AllReduce,
    Compute,
    Free,
    Instruction,
    Offload,
    Prefetch,
    RepeatedSchedule,
    Reuse,
    Schedule,
    Wait,
    Work,
)
from membench.core.graph.task_graph import Phase
from membench.core.step.optimizer import UpdateOf
from membench.planning.checking.validate import validate
from membench.planning.rewrites.update import undivided

ROOT = 0
"""The process on whose device the exchange at the end averages."""


class Exchange(StrEnum):
    """Time and place of the averaging over processes."""

    AS_MADE = "as_made"
    AT_END = "at_end"


def update_before(exchange: Exchange | None, update_of: UpdateOf | None) -> UpdateOf | None:
    """Return the update of a step with exchanged gradients, which at the end must all precede the update."""
    return undivided(update_of) if update_of and exchange is Exchange.AT_END else update_of


def exchange_gradients(schedule: Schedule, exchange: Exchange) -> Schedule:
    """Return the schedule with every weight's gradient averaged over all processes once, after it is complete.

    Raises:
        UnsupportedStrategy: the step keeps no gradients, because its framework applies each at once; or it applies them
            in the backward pass, before the end.
    """
    last_uses = _last_uses(schedule)
    if not last_uses:
        raise UnsupportedStrategy(
            f"{schedule.graph.name} keeps no gradients that processes could exchange; choose another framework"
        )
    is_early = exchange is Exchange.AS_MADE
    blocks, before_update = schedule.graph.blocks, schedule.instructions[: _first_update(schedule)]
    back = {item.block for item in schedule.instructions[len(before_update) :] if isinstance(item, Prefetch)}
    leave = any(block in back or blocks[block].host_location for block in last_uses)
    if not is_early and (leave or any(task.on_host for task in schedule.graph.tasks)):
        raise UnsupportedStrategy(
            f"strategy {schedule.strategy!r} moves gradients, or their sums, to host memory before the end of the "
            "step; use exchange=as_made, or another strategy"
        )
    if not is_early and _updates_in_backward(schedule):
        raise UnsupportedStrategy(
            "an update in the backward pass leaves no gradients for an exchange at the end; use exchange=as_made, or "
            "leave in_backward out"
        )
    last_work = {item.stream: i for i, item in enumerate(before_update) if isinstance(item, Work)}
    after = last_uses if is_early else dict.fromkeys(last_uses, last_work)
    due: defaultdict[int, list[int]] = defaultdict(list)  # instruction -> gradients exchanged after it
    for block, instructions in after.items():
        due[max(instructions.values())].append(block)
    program = _ExchangeInstructions(None if is_early else ROOT)
    for index, instruction in enumerate(schedule.instructions):
        program.keep(instruction, _touched(schedule, instruction))
        for block in due[index]:
            program.average(block, after[block])
    return replace(schedule, instructions=program.finish())


def exchange_in_last_run(runs: tuple[RepeatedSchedule, ...], exchange: Exchange) -> tuple[RepeatedSchedule, ...]:
    """Return a validated step whose last run exchanges the gradients, accumulated over all micro-batches by then."""
    *before, last = runs
    if last.count > 1:
        before.append(replace(last, count=last.count - 1))
    exchanging = exchange_gradients(last.schedule, exchange)
    validate(exchanging, exchanges=True)
    return (*before, RepeatedSchedule(exchanging))


def _last_uses(schedule: Schedule) -> dict[int, dict[str, int]]:
    """Return for each gradient, by stream, the last instruction that touches it; in the order of completion."""
    gradients = {value.block for _, value in schedule.graph.gradients if value}
    complete = _complete(schedule)
    uses: dict[int, dict[str, int]] = {}
    for index, instruction in enumerate(schedule.instructions):
        if isinstance(instruction, Compute | Offload | Prefetch):
            for block in sorted(_touched(schedule, instruction) & gradients):
                if index <= complete.get(block, index):
                    uses[block] = {**uses.pop(block, {}), instruction.stream: index}
    return uses


def _first_update(schedule: Schedule) -> int | None:
    """Return the position of the first task that updates weights; None without one."""
    tasks = schedule.graph.tasks
    positions = (
        index
        for index, item in enumerate(schedule.instructions)
        if isinstance(item, Compute) and tasks[item.task].phase is Phase.UPDATE
    )
    return next(positions, None)


def _updates_in_backward(schedule: Schedule) -> bool:
    tasks = schedule.graph.tasks
    return any(before.phase is Phase.UPDATE and task.phase is not Phase.UPDATE for before, task in pairwise(tasks))


def _complete(schedule: Schedule) -> dict[int, int]:
    """Return by block the position of the last task of the passes that writes it, if an update or the host reads it."""
    is_read = _first_update(schedule) is not None
    tasks, blocks = schedule.graph.tasks, schedule.graph.blocks
    return {
        block: index
        for index, item in enumerate(schedule.instructions)
        if isinstance(item, Compute) and tasks[item.task].phase is not Phase.UPDATE
        for block in tasks[item.task].writes
        if is_read or blocks[block].host_location
    }


def _touched(schedule: Schedule, instruction: Instruction) -> set[int]:
    """Return the blocks whose memory an instruction uses or gives back."""
    match instruction:
        case Compute(task):
            return {*schedule.graph.tasks[task].reads, *schedule.graph.tasks[task].writes}
        case Offload(block) | Prefetch(block) | Free(block) | Reuse(dead=block):
            return {block}
        case _:
            return set()


class _ExchangeInstructions:
    """A finished schedule's instructions, renumbered as exchanges are inserted between them."""

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._instructions: list[Instruction] = []
        self._position: list[int] = []  # of each of the schedule's instructions
        self._waited: dict[str, int] = {}  # stream -> the instruction that the exchange has waited for
        self._last_exchange: int | None = None
        self._exchanges: dict[int, int] = {}  # block -> its exchange
        self._known: dict[str, int] = {}  # stream -> the exchange that it has waited for

    def keep(self, instruction: Instruction, touched: set[int]) -> None:
        """Add an instruction of the schedule, after the exchanges of what it touches."""
        exchange = max((self._exchanges[block] for block in touched & self._exchanges.keys()), default=-1)
        stream = getattr(instruction, "stream", COMPUTE_STREAM)
        if exchange > self._known.get(stream, -1):
            self._instructions.append(Wait(stream, exchange))
            self._known[stream] = exchange
        if isinstance(instruction, Wait):
            instruction = replace(instruction, instruction=self._position[instruction.instruction])
        self._position.append(len(self._instructions))
        self._instructions.append(instruction)

    def average(self, block: int, after: dict[str, int]) -> None:
        """Exchange a gradient after one instruction of each of these streams."""
        for stream, index in after.items():
            if self._waited.get(stream, -1) < index:
                self._instructions.append(Wait(EXCHANGE_STREAM, self._position[index]))
                self._waited[stream] = index
        self._last_exchange = self._exchanges[block] = len(self._instructions)
        self._instructions.append(AllReduce(block, self._root))

    def finish(self) -> tuple[Instruction, ...]:
        if self._last_exchange is not None:
            self._instructions.append(Wait(COMPUTE_STREAM, self._last_exchange))
        return tuple(self._instructions)
