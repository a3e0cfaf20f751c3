"""The library's answers stay: predictions, plans, advices of many networks, and what commands print."""

import pytest

from tests.helpers.answers import answer, committed, line, questions

pytestmark = pytest.mark.usefixtures("kept_planners")

COMMITTED = committed()
NAMES = list(COMMITTED)
FEW = 12
"""Every how many questions one is asked in the default run."""


def _check(name: str) -> None:
    question, expected = COMMITTED[name]
    assert line(question, answer(question)) == line(question, expected)


@pytest.mark.parametrize("name", NAMES[::FEW])
def test_an_answer_is_the_committed_one(name: str) -> None:
    _check(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for number, name in enumerate(NAMES) if number % FEW])
def test_another_answer_is_the_committed_one(name: str) -> None:
    _check(name)


def test_the_file_has_every_question() -> None:
    assert [question.name for question in questions()] == NAMES
    assert len(NAMES) > 250
