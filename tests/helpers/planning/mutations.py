"""Mutants of schedules: one instruction dropped, moved, duplicated, swapped or retargeted, positions renumbered."""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from membench.core.errors import InvalidSchedule
from membench.core.graph.schedule import Free, Hold, Instruction, Reserve, Reuse, Schedule, Wait, Work
from membench.planning.checking.validate import validate

_Entry = tuple[int, Instruction]
"""The instruction's position in the original program, by which waits find it, and the instruction."""


def accepted_mutants(
    schedule: Schedule, rng: random.Random, count: int, *, exchanges: bool = False, host_memory_bytes: int | None = None
) -> Iterator[tuple[str, Schedule]]:
    """Make so many mutants, and yield those that the validator accepts and that differ from the schedule, see `mutant`.

    Args:
        exchanges, host_memory_bytes: see `validate`.
    """
    for _ in range(count):
        description, changed = mutant(schedule, rng)
        try:
            validate(changed, exchanges=exchanges, host_memory_bytes=host_memory_bytes)
        except InvalidSchedule:
            continue
        if changed != schedule:
            yield description, changed


def mutant(schedule: Schedule, rng: random.Random) -> tuple[str, Schedule]:
    """Return a mutation's description and the schedule that it makes, which may be the original in another spelling."""
    program: list[_Entry] = list(enumerate(schedule.instructions))
    name = rng.choice(sorted(_MUTATIONS))
    position = rng.randrange(len(program))
    _MUTATIONS[name](schedule, program, position, rng)
    made = replace(schedule, instructions=_renumbered(program))
    if name == "peak":
        made = replace(made, peak_bytes=made.peak_bytes + rng.choice([-4, 4]))
    return f"{name} {position}: {schedule.instructions[position]}", made


def _renumbered(program: list[_Entry]) -> tuple[Instruction, ...]:
    """Return the instructions with each wait for the new position of its target, or of the last work before that."""
    position = {original: index for index, (original, _) in reversed(list(enumerate(program)))}
    found: list[Instruction] = []
    for _, item in program:
        if isinstance(item, Wait):
            earlier = next((o for o in range(item.instruction, -1, -1) if _is_work(o, position, program)), None)
            item = Wait(item.stream, item.instruction) if earlier is None else Wait(item.stream, position[earlier])
        found.append(item)
    return tuple(found)


def _is_work(original: int, position: dict[int, int], program: list[_Entry]) -> bool:
    return original in position and isinstance(program[position[original]][1], Work)


def _drop(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    del program[position]


def _duplicate(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    program.insert(rng.randint(position, min(len(program), position + 12)), (-1, program[position][1]))


def _move(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    entry = program.pop(position)
    program.insert(max(0, min(len(program), position + rng.randint(-15, 15))), entry)


def _swap(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    other = rng.randrange(len(program))
    program[position], program[other] = program[other], program[position]


def _retarget(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    """Replace one field: a block by another, a stream by another, a wait's target, a size."""
    original, item = program[position]
    names = [field.name for field in fields(item) if field.name not in ("codec", "root")]
    if not names:
        return
    name = rng.choice(names)
    streams = sorted({entry.stream for _, entry in program if isinstance(entry, Work)})
    choices: dict[str, Any] = {
        "stream": rng.choice(streams),
        "task": rng.randrange(len(schedule.graph.tasks)),
        "instruction": rng.randrange(position + 1),
    }
    if isinstance(item, Hold | Reserve) and name.endswith("_bytes"):
        value: Any = max(0, getattr(item, name) + rng.choice([-64, 64]))
    else:
        value = choices.get(name, rng.randrange(len(schedule.graph.blocks)))
    program[position] = original, replace(item, **{name: value})


def _exchange_neighbours(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    """Swap with the next instruction of the same kind: two tasks, two frees, two copies."""
    kind = type(program[position][1])
    later = [i for i in range(position + 1, len(program)) if isinstance(program[i][1], kind)]
    if later:
        program[position], program[later[0]] = program[later[0]], program[position]


def _drop_frees(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    """Drop the next instruction that gives memory back or takes it over."""
    for index in range(position, len(program)):
        if isinstance(program[index][1], Free | Reuse | Reserve | Hold):
            del program[index]
            return


def _peak(schedule: Schedule, program: list[_Entry], position: int, rng: random.Random) -> None:
    """Leave the program as it is; only its stated peak changes."""


_MUTATIONS = {
    "drop": _drop,
    "drop memory": _drop_frees,
    "duplicate": _duplicate,
    "move": _move,
    "peak": _peak,
    "retarget": _retarget,
    "swap": _swap,
    "swap neighbours": _exchange_neighbours,
}
