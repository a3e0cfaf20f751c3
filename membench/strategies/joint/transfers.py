"""When blocks leave and return: each copy as late as memory allows to be waited for, and no earlier than it must.

Two walks over a program. The first goes backwards in time from the end of the step: a block's copy back ends where the block
is needed, or earlier where the link is busy, and the block's memory is taken at the task during which the copy begins. Where
the memory is needed before, the step stalls. The second walk goes forwards: copies out start as soon as a block is written,
in that order; its memory is given back as soon as the copy has ended and its last reader has run, and where memory is needed
before, the step stalls. So both walks follow the same rule, with time reversed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from membench.strategies.joint.problem import Choice
from membench.strategies.joint.sequence import Choices, Program


@dataclass(slots=True)
class Absence:
    """A block away from the device.

    Attributes:
        written: position of the last task that writes it; its copy to the host may start then.
        last: position of its last use before.
        first: position of its first use after.
        returns: position before which its copy back is issued.
        leaves: position before which it is freed; None: it never left in time.
    """

    block: int
    size_bytes: int
    written: int
    last: int
    first: int
    returns: int = -1
    leaves: int | None = None


@dataclass(frozen=True, slots=True)
class Transfers:
    """The copies of a program.

    Attributes:
        absences: blocks that leave, in the order in which they were written.
        step_s: seconds of the step.
        peak_bytes: the most that it holds.
    """

    absences: tuple[Absence, ...]
    step_s: float
    peak_bytes: int


def plan_transfers(program: Program, choices: Choices, budget_bytes: int) -> Transfers | None:
    """Return the copies with which a program keeps a budget; None where it cannot."""
    absences = list(_absences(program, choices))
    walks = _Walks(program, absences, budget_bytes)
    return walks.transfers() if walks.go_back() and walks.go_forward() else None


def least_bytes(program: Program, choices: Choices) -> tuple[int, int]:
    """Return the least budget that any copies can keep, and the position that needs it."""
    held = _Walks(program, list(_absences(program, choices)), 0).held_bytes
    return max(held), held.index(max(held))


def _absences(program: Program, choices: Choices) -> Iterator[Absence]:
    """Yield the longest absence of each block that is to be offloaded, in the order in which they are written."""
    problem = program.problem
    operations = problem.operations
    clock_s = [0.0]
    for step in program.steps:
        clock_s.append(clock_s[-1] + problem.duration_s[step.operation])
    found = []
    for unit, choice in zip(problem.units, choices, strict=True):
        if choice is not Choice.OFFLOAD:
            continue
        for block in unit.blocks:
            uses = program.uses[block]
            written = max(p for p in uses if block in operations[program.steps[p].operation].writes)
            gaps = [
                (clock_s[b] - clock_s[a + 1], a, b) for a, b in pairwise(uses) if a >= written and b > a + 1
            ]
            if gaps:
                _, last, first = max(gaps)
                found.append(Absence(block, problem.graph.blocks[block].size_bytes, written, last, first))
    found.sort(key=lambda absence: (absence.written, absence.last, absence.block))
    yield from found


class _Walks:
    def __init__(self, program: Program, absences: list[Absence], budget_bytes: int) -> None:
        self._problem = problem = program.problem
        self._absences = absences
        self._budget_bytes = budget_bytes
        self._durations_s = [problem.duration_s[step.operation] for step in program.steps]
        held = program.held_bytes()
        change = [0] * (len(held) + 1)
        for absence in absences:
            change[absence.last + 1] -= absence.size_bytes
            change[absence.first] += absence.size_bytes
        away = 0
        for position, difference in enumerate(change[:-1]):
            away += difference
            held[position] += away
        self.held_bytes = held  # without blocks that could be away
        self._step_s = 0.0
        self._peak = 0

    def go_back(self) -> bool:
        """Decide where each block returns; whether memory suffices."""
        needed_at: dict[int, list[Absence]] = {}
        for absence in self._absences:
            needed_at.setdefault(absence.first, []).append(absence)
            absence.returns = absence.last + 1
        starts_at: dict[int, list[Absence]] = {}
        for absence in self._absences:
            starts_at.setdefault(absence.last, []).append(absence)
        time_s = link_s = 0.0
        here = 0
        copying: deque[tuple[float, Absence]] = deque()
        for position in reversed(range(len(self.held_bytes))):
            for absence in starts_at.get(position, ()):  # too short to leave
                for item in [item for item in copying if item[1] is absence]:
                    copying.remove(item)
                    here -= absence.size_bytes
                    absence.returns = absence.last + 1
            while copying and (
                copying[0][0] <= time_s or self.held_bytes[position] + here > self._budget_bytes
            ):
                end_s, absence = copying.popleft()
                time_s = max(time_s, end_s)
                here -= absence.size_bytes
                absence.returns = position + 1
            self.held_bytes[position] += here
            if self.held_bytes[position] > self._budget_bytes:
                return False
            time_s += self._durations_s[position]
            for absence in sorted(needed_at.get(position, ()), key=lambda absence: absence.last):
                link_s = max(time_s, link_s) + self._problem.prefetch_s[absence.block]
                copying.append((link_s, absence))
                here += absence.size_bytes
        return True

    def go_forward(self) -> bool:
        """Decide where each block is freed, and measure time; whether memory suffices."""
        written_at: dict[int, list[Absence]] = {}
        returns_at: dict[int, list[Absence]] = {}
        done_at: dict[int, list[Absence]] = {}
        for absence in self._absences:
            if absence.returns > absence.last + 1:
                written_at.setdefault(absence.written, []).append(absence)
                returns_at.setdefault(absence.returns, []).append(absence)
                done_at.setdefault(absence.last, []).append(absence)
        time_s = out_s = back_s = 0.0
        copied_s: dict[int, float] = {}
        here_s: dict[int, list[float]] = {}
        leaving: list[tuple[float, int, Absence]] = []
        here = 0
        for position, duration_s in enumerate(self._durations_s):
            for absence in returns_at.get(position, ()):
                entry = next((item for item in leaving if item[2] is absence), None)
                if entry:
                    leaving.remove(entry)
                    leaving.sort()
                    here -= absence.size_bytes
            while leaving and (
                leaving[0][0] <= time_s or self.held_bytes[position] + here > self._budget_bytes
            ):
                end_s, _, absence = heappop(leaving)
                time_s = max(time_s, end_s)
                here -= absence.size_bytes
                absence.leaves = position
            held = self.held_bytes[position] + here
            self._peak = max(self._peak, held)
            if held > self._budget_bytes:
                return False
            for absence in sorted(returns_at.get(position, ()), key=lambda absence: absence.first):
                if absence.leaves is not None:
                    back_s = max(back_s, time_s) + self._problem.prefetch_s[absence.block]
                    here_s.setdefault(absence.first, []).append(back_s)
            time_s = max([time_s, *here_s.get(position, ())]) + duration_s
            for absence in written_at.get(position, ()):
                out_s = max(out_s, time_s) + self._problem.offload_s[absence.block]
                copied_s[absence.block] = out_s
            for absence in done_at.get(position, ()):
                heappush(leaving, (copied_s[absence.block], absence.block, absence))
                here += absence.size_bytes
        self._step_s = time_s
        return True

    def transfers(self) -> Transfers:
        gone = tuple(absence for absence in self._absences if absence.leaves is not None)
        return Transfers(gone, self._step_s, self._peak)
