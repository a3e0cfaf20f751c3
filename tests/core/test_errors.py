"""A mistyped word is answered with the known words that it is most like."""

import pytest

from membench.core.configuration import names
from membench.core.errors import near


@pytest.mark.parametrize(
    ("word", "known", "answer"),
    [
        ("stratgy", ["strategy", "seed"], "; did you mean 'strategy'?"),
        ("rnu", ["run", "train", "report"], "; did you mean 'run'?"),
        ("EAGER", ["eager", "gist"], "; did you mean 'eager'?"),
        ("k40", ["k40c", "k40m", "titan_z"], "; did you mean 'k40c' or 'k40m'?"),
        ("magic", ["eager", "gist"], ""),
        (3, ["eager"], ""),
        ("word", [], ""),
    ],
)
def test_the_likest_words_are_named(word: object, known: list[str], answer: str) -> None:
    assert near(word, known) == answer


@pytest.mark.parametrize("group", ["model", "strategy", "device", "framework"])
def test_a_letter_too_few_or_a_wrong_one_finds_the_name(group: str) -> None:
    for name in names(group):
        assert repr(name) in near(name[:-1], names(group)) or name[:-1] in names(group)
        wrong = f"{name[:2]}?{name[3:]}"
        others = [
            other for other in names(group) if len(other) >= len(name)
        ]  # a shorter one may be liker, as 'h20' is to 'h2?0'
        assert repr(name) in near(wrong, others) or near(wrong, others).count("'") == 6
