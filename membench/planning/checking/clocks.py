"""Vector clocks of streams: which instructions are known to have finished before a stream's next one starts."""

from membench.core.graph.schedule import COMPUTE_STREAM, EXCHANGE_STREAM

Access = tuple[str, int]
"""A stream and the position of its instruction."""

Clock = dict[str, int]
"""By other stream, the latest of its instructions known to have finished; replaced, not changed."""


class Clocks:
    """The clock of each stream, and that of each instruction when it was issued."""

    def __init__(self) -> None:
        self.latest: Clock = {}  # instruction of each stream
        self._clocks: dict[str, Clock] = {COMPUTE_STREAM: {}}
        self._synchronized: Clock = {}
        self._issued: dict[int, tuple[str, Clock]] = {}

    def issue(self, stream: str, index: int) -> None:
        """Note that an instruction is the next one of a stream."""
        self._issued[index] = stream, self._clock(stream)
        self.latest[stream] = index

    def wait(self, stream: str, earlier: int) -> str | None:
        """Make a stream wait for an instruction, and return the stream of that; None where no stream has it."""
        if earlier not in self._issued:
            return None
        other, clock = self._issued[earlier]
        self._learn(stream, {**clock, other: earlier})
        return other

    def synchronize(self) -> Clock:
        """Make all streams wait for all others but the exchange's, and return the latest instruction of each."""
        everything = {stream: latest for stream, latest in self.latest.items() if stream != EXCHANGE_STREAM}
        for stream in self._clocks:
            self._learn(stream, everything)
        self._synchronized = everything
        return everything

    def known(self, stream: str, access: Access | None) -> bool:
        """Return whether the stream's next instruction starts after that access has finished."""
        if access is None or access[0] == stream:
            return True
        return self._clocks[stream].get(access[0], -1) >= access[1]

    def _learn(self, stream: str, finished: Clock) -> None:
        clock = self._clock(stream)
        later = {other: index for other, index in finished.items() if clock.get(other, -1) < index}
        self._clocks[stream] = {**clock, **later}

    def _clock(self, stream: str) -> Clock:
        """Return a stream's clock; a new one starts with the instructions that the host has waited for."""
        return self._clocks.setdefault(stream, self._synchronized)
