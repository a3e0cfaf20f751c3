"""A finished schedule's instructions with those of the disk between them, and the waits that they need."""

from collections import defaultdict

from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    LOAD_STREAM,
    STORE_STREAM,
    Drop,
    Instruction,
    Load,
    Store,
    Synchronize,
    Wait,
    Work,
)


class DiskInstructions:
    """Instructions, renumbered, with the waits that the order of copies in host memory and on the disk needs."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._position: list[int] = []  # of each of the schedule's instructions
        self._last: dict[str, int] = {}  # of each stream
        self._known: dict[tuple[str, str], int] = {}  # (stream, other): instruction that it has waited for
        self._filled: dict[int, tuple[str, int]] = {}  # the last write of a block's buffer
        self._readers: defaultdict[int, dict[str, int]] = defaultdict(dict)  # since then, the last of each stream
        self._stored: dict[int, int] = {}
        self._last_drop: int | None = None
        self._uses: list[tuple[int, str, bool]] = []  # by the instruction that comes next

    def use(self, block: int, stream: str, *, writes: bool) -> None:
        """Let the schedule's next instruction use a block's buffer."""
        if block in self._filled:
            self._wait(stream, *self._filled[block])
        for other, index in self._readers[block].items() if writes else ():
            self._wait(stream, other, index)
        self._uses.append((block, stream, writes))

    def open_buffer(self, stream: str) -> None:
        """Let a stream's next instruction open a buffer."""
        if self._last_drop is not None:
            self._wait(stream, LOAD_STREAM, self._last_drop)

    def keep(self, instruction: Instruction) -> None:
        """Add an instruction of the schedule."""
        match instruction:
            case Wait(stream, earlier):
                index = self._position[earlier]
                work = self.instructions[index]
                assert isinstance(work, Work), "the schedule was validated"
                instruction = Wait(stream, index)
                self._known[stream, work.stream] = max(index, self._known.get((stream, work.stream), -1))
            case Synchronize():
                for stream in (*self._last, LOAD_STREAM, STORE_STREAM):
                    for other, index in self._last.items():
                        self._known[stream, other] = index
        self._position.append(len(self.instructions))
        index = self._emit(instruction)
        for block, stream, writes in self._uses:
            self._note(block, stream, index, writes=writes)
        self._uses.clear()

    def load(self, block: int) -> None:
        if block in self._stored:
            self._wait(LOAD_STREAM, STORE_STREAM, self._stored[block])
        self._note(block, LOAD_STREAM, self._emit(Load(block)), writes=True)

    def store(self, block: int) -> None:
        self._wait(STORE_STREAM, *self._filled[block])
        self._stored[block] = self._emit(Store(block))
        self._note(block, STORE_STREAM, self._stored[block], writes=False)

    def drop(self, block: int) -> None:
        self._wait(LOAD_STREAM, *self._filled.pop(block))
        for other, index in self._readers.pop(block, {}).items():
            self._wait(LOAD_STREAM, other, index)
        self._last_drop = self._emit(Drop(block))

    def finish(self) -> None:
        """Let the compute stream wait for the disk."""
        for stream in (LOAD_STREAM, STORE_STREAM):
            if stream in self._last:
                self._wait(COMPUTE_STREAM, stream, self._last[stream])

    def _note(self, block: int, stream: str, index: int, *, writes: bool) -> None:
        if writes:
            self._filled[block] = stream, index
            self._readers[block].clear()
        else:
            self._readers[block][stream] = index

    def _emit(self, instruction: Instruction) -> int:
        index = len(self.instructions)
        self.instructions.append(instruction)
        if isinstance(instruction, Work):
            self._last[instruction.stream] = index
        return index

    def _wait(self, stream: str, other: str, index: int) -> None:
        if stream != other and self._known.get((stream, other), -1) < index:
            self._emit(Wait(stream, index))
            self._known[stream, other] = index
