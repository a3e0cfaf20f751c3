"""Numbered notes: a remark that explains several numbers is printed once, and their reasons cite it by number."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """The explanation of one number.

    Attributes:
        text: what applies to this number alone.
        explanations: texts of the paper's remarks that apply to it.
    """

    text: str
    explanations: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether there is any explanation."""
        return bool(self.text or self.explanations)


@dataclass(frozen=True)
class Note:
    """A remark with its number on a page."""

    number: int
    text: str


@dataclass(frozen=True)
class Notes:
    """The notes of a page by heading, numbered throughout."""

    by_heading: Mapping[str, tuple[Note, ...]]

    def cited(self, reason: Reason) -> list[Note]:
        """Return the notes that a reason cites, in its order."""
        known = {note.text: note for notes in self.by_heading.values() for note in notes}
        return [known[text] for text in reason.explanations]


def number_notes(texts: Mapping[str, Iterable[str]]) -> Notes:
    """Number texts, given by heading, in their order; each becomes a note under the first heading that has it."""
    headings: dict[str, tuple[Note, ...]] = {}
    known: set[str] = set()
    for heading, of_heading in texts.items():
        new = [text for text in of_heading if text not in known]
        numbered = enumerate(new, start=len(known) + 1)
        headings[heading] = tuple(Note(number, text) for number, text in numbered)
        known.update(new)
    return Notes(headings)


def split_reason(reason: str, explanations: Sequence[str]) -> Reason:
    """Separate the explanations that a table's reason contains in full from the rest of it."""
    own, found = reason, set()
    for text in sorted(explanations, key=len, reverse=True):  # one may be part of another
        if text in own:
            found.add(text)
            own = own.replace(text, "")
    text = "; ".join(filter(None, own.split("; ")))
    return Reason(text, tuple(text for text in dict.fromkeys(explanations) if text in found))
