"""Accesses to blocks of one memory by the instructions of streams."""

Access = tuple[str, int]
"""A stream, and the position of its instruction."""


class Accesses:
    """The last write of each block, and what has read it since."""

    def __init__(self) -> None:
        self._writes: dict[int, Access] = {}
        self._reads: dict[int, list[Access]] = {}

    def before(self, block: int, *, writes: bool) -> list[Access]:
        """Return what precedes an access to a block: the last write, and before a write what has read it since."""
        written = self._writes.get(block)
        return [*([written] if written else ()), *(self._reads.get(block, ()) if writes else ())]

    def note(self, block: int, access: Access, *, writes: bool) -> None:
        """Note an access; a write may be one that reads, too."""
        if writes:
            self._writes[block] = access
            self._reads.pop(block, None)
        else:
            self._reads.setdefault(block, []).append(access)
