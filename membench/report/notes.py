"""Notes: remarks that explain several numbers, printed once; a reason refers to them by number."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A known cause of deviations, an inconsistency of the paper's, or a fit.

    Attributes:
        count: of the numbers that it bears on.
    """

    number: int
    text: str
    count: int


@dataclass(frozen=True)
class Reason:
    """What explains one number: words of its own, and notes."""

    text: str
    notes: tuple[Note, ...]

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.text or self.notes)


def refer(reason: str, notes: Sequence[Note]) -> Reason:
    """Return a reason without the notes that it contains in full, and those notes in the order of their numbers."""
    found = []
    for note in sorted(notes, key=lambda note: len(note.text), reverse=True):  # one may be part of another
        if note.text in reason:
            found.append(note)
            reason = reason.replace(note.text, "")
    own = "; ".join(filter(None, reason.split("; ")))
    return Reason(own, tuple(sorted(found, key=lambda note: note.number)))
