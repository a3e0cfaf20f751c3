"""Notes: a reason keeps its own words and refers to the rest; nothing gets lost."""

from hypothesis import given
from hypothesis import strategies as st

from membench.papers.notes import Note, Reason, refer

WORDS = st.lists(st.text("abc ", min_size=1).map(lambda text: f"<{text}>"), unique=True, max_size=5)


def test_a_reason_refers_to_notes_by_number() -> None:
    short, long = Note(1, "a cause", 3), Note(2, "a cause of more", 2)
    assert refer("judged by its ratio; a cause of more; a cause", [short, long]) == Reason(
        "judged by its ratio", (short, long)
    )
    assert refer("a cause of more", [short, long]) == Reason("", (long,))
    assert refer("something else", [short, long]) == Reason("something else", ())
    assert not refer("", [short, long])


@given(WORDS, st.data())
def test_own_words_and_notes_are_all_of_the_reason(parts: list[str], data: st.DataObject) -> None:
    noted = data.draw(st.lists(st.sampled_from(parts), unique=True)) if parts else []
    notes = [Note(number, text, 1) for number, text in enumerate(noted, start=1)]
    told = refer("; ".join(parts), notes)
    own = told.text.split("; ") if told.text else []
    assert own == [part for part in parts if part not in noted]
    assert list(told.notes) == notes
