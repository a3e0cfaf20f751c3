"""The most memory that a schedule holds under any timing, found by trying all of them.

The compute stream passes the program's instructions one after another, and memory changes hands as it passes them. Any
other stream starts its next work at any time after the compute stream has come to it and what it waits for has ended,
and ends it at any time after that.
"""

from collections.abc import Iterator

from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    EXCHANGE_STREAM,
    Compute,
    Decode,
    Encode,
    Free,
    Hold,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Synchronize,
    Wait,
    Work,
)

_Progress = tuple[int, tuple[tuple[int, bool], ...]]
"""The compute stream's position, and how much of other streams' work has ended or started."""


def highest_bytes(schedule: Schedule) -> int:
    """Return the most bytes that are in use at once under any timing."""
    return _Timings(schedule).highest_bytes()


class _Timings:
    def __init__(self, schedule: Schedule) -> None:
        self.graph = schedule.graph
        self.program = schedule.instructions
        others = {i.stream for i in self.program if isinstance(i, Work)} - {COMPUTE_STREAM}
        self.streams = sorted(others)
        self.work = [
            [at for at, i in enumerate(self.program) if isinstance(i, Work) and i.stream == stream]
            for stream in self.streams
        ]
        self.spaces = self._bytes_of_spaces()

    def highest_bytes(self) -> int:
        start: _Progress = 0, ((0, False),) * len(self.streams)
        seen, left, highest = {start}, [start], self.graph.external_bytes
        while left:
            progress = left.pop()
            highest = max(highest, self._bytes(progress))
            new = set(self._next(progress)) - seen
            seen |= new
            left += new
        assert max(position for position, _ in seen) == len(self.program), "the schedule blocks itself"
        return highest

    def _bytes_of_spaces(self) -> list[int]:
        """Return the bytes of the caller's blocks, open spaces and what is held unused, during each instruction."""
        spaces: dict[int, int] = {}
        held_bytes, found = 0, []
        for instruction in self.program:
            opened: tuple[int, ...] = ()
            match instruction:
                case Compute(task):
                    opened = self.graph.tasks[task].creates
                case Prefetch(block) | Decode(block) | Encode(encoded=block):
                    opened = (block,)
                case Reserve(block, size_bytes):
                    spaces[block] = size_bytes
                case Reuse(block, dead):
                    spaces[block] = spaces.pop(dead)
                case Free(block):
                    del spaces[block]
                case Hold(size_bytes):
                    held_bytes = size_bytes
            for block in opened:
                spaces.setdefault(block, self.graph.blocks[block].size_bytes)
            found.append(self.graph.external_bytes + sum(spaces.values()) + held_bytes)
        return found

    def _bytes(self, progress: _Progress) -> int:
        position, others = progress
        if position == len(self.program):
            return 0
        running = [work[ended] for work, (ended, started) in zip(self.work, others, strict=True) if started]
        here = self.program[position]
        if isinstance(here, Compute) and here.stream == COMPUTE_STREAM:
            running.append(position)
        tasks = [item.task for at in running if isinstance(item := self.program[at], Compute)]
        return self.spaces[position] + sum(self.graph.tasks[task].workspace_bytes for task in tasks)

    def _next(self, progress: _Progress) -> Iterator[_Progress]:
        position, others = progress
        if position < len(self.program) and self._may_pass(progress):
            yield position + 1, others
        for number, (ended, started) in enumerate(others):
            before, behind = others[:number], others[number + 1 :]
            if started:
                yield position, (*before, (ended + 1, False), *behind)
            elif ended < len(self.work[number]) and self._may_start(self.work[number][ended], progress):
                yield position, (*before, (ended, True), *behind)

    def _may_pass(self, progress: _Progress) -> bool:
        position, _ = progress
        match self.program[position]:
            case Wait(stream, earlier) if stream == COMPUTE_STREAM:
                return self._has_ended(earlier, progress)
            case Synchronize():
                return all(
                    self._has_ended(at, progress)
                    for at, item in enumerate(self.program[:position])
                    if isinstance(item, Work) and item.stream != EXCHANGE_STREAM
                )
            case _:
                return True

    def _may_start(self, at: int, progress: _Progress) -> bool:
        position, _ = progress
        work = self.program[at]
        assert isinstance(work, Work)
        awaited = (i.instruction for i in self.program[:at] if isinstance(i, Wait) and i.stream == work.stream)
        return position >= at and all(self._has_ended(earlier, progress) for earlier in awaited)

    def _has_ended(self, at: int, progress: _Progress) -> bool:
        position, others = progress
        work = self.program[at]
        assert isinstance(work, Work)
        if work.stream == COMPUTE_STREAM:
            return position > at
        number = self.streams.index(work.stream)
        return at in self.work[number][: others[number][0]]
