"""Notes: remarks that explain several numbers, printed once; a reason refers to them by number."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from membench.papers.experiment import Remark, Row


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


def numbered_notes(
    headed: Iterable[tuple[str, Sequence[Remark], Sequence[Row]]],
) -> dict[str, tuple[Note, ...]]:
    """Return under each heading the remarks that bear on one of its rows, those on most rows first.

    Args:
        headed: headings, each with remarks and with the rows on which they may bear.
    """
    numbering = count(1)
    found = {}
    for heading, remarks, rows in headed:
        selections = defaultdict(list)
        for remark in remarks:
            selections[remark.text].append(remark.where)
        counts = {
            text: sum(any(where.matches(row) for where in of_text) for row in rows)
            for text, of_text in selections.items()
        }
        texts = sorted(filter(counts.__getitem__, counts), key=counts.__getitem__, reverse=True)
        found[heading] = tuple(Note(next(numbering), text, counts[text]) for text in texts)
    return found


def refer(reason: str, notes: Sequence[Note]) -> Reason:
    """Return a reason without the notes that it contains in full, and those notes in the order of their numbers."""
    found = []
    for note in sorted(notes, key=lambda note: len(note.text), reverse=True):  # one may be part of another
        if note.text in reason:
            found.append(note)
            reason = reason.replace(note.text, "")
    own = "; ".join(filter(None, reason.split("; ")))
    return Reason(own, tuple(sorted(found, key=lambda note: note.number)))
