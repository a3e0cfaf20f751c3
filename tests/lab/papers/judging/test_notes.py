"""Notes: a reason keeps its own words and cites the rest; nothing is lost and nothing is numbered twice."""

from hypothesis import given
from hypothesis import strategies as st

from membench.lab.papers.judging.notes import Note, Reason, number_notes, split_reason

WORDS = st.lists(st.text("abc ", min_size=1).map(lambda text: f"<{text}>"), unique=True, max_size=5)


def test_a_reason_is_split_into_its_own_words_and_the_explanations() -> None:
    texts = ("a cause", "a cause of more")
    reason = "judged by its ratio; a cause; a cause of more"
    assert split_reason(reason, texts) == Reason("judged by its ratio", texts)
    assert split_reason("a cause of more", texts) == Reason("", ("a cause of more",))
    assert split_reason("something else", texts) == Reason("something else", ())
    assert not split_reason("", texts)


def test_a_note_has_one_number_under_the_first_heading_that_has_it() -> None:
    notes = number_notes({"first": ["b", "a"], "second": ["a", "c"]})
    assert notes.by_heading == {"first": (Note(1, "b"), Note(2, "a")), "second": (Note(3, "c"),)}
    assert [note.number for note in notes.cited(Reason("", ("c", "b")))] == [3, 1]


@given(WORDS, st.data())
def test_own_words_and_explanations_are_all_of_the_reason(parts: list[str], data: st.DataObject) -> None:
    explanations = data.draw(st.lists(st.sampled_from(parts), unique=True)) if parts else []
    reason = split_reason("; ".join(parts), explanations)
    own = reason.text.split("; ") if reason.text else []
    assert own == [part for part in parts if part not in explanations]
    assert list(reason.explanations) == explanations
