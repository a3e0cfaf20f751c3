"""Bare words and ``name=value`` words, read into typed values."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from membench.cli.words import each, read_number, read_options, read_size, read_switch, split, with_own_model
from membench.core.checks import POSITIVE, choice
from membench.core.errors import MembenchError


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


READERS = {
    "side": partial(choice, Side, "side"),
    "sides": each(partial(choice, Side, "sides")),
    "ratio": partial(read_number, POSITIVE, "ratio"),
    "deep": partial(read_switch, "deep"),
    "budget": partial(read_size, "budget"),
    "to": Path,
}


def test_bare_words_are_separated_from_options() -> None:
    assert split(["compare", "to=x", "A", "b=c=d"]) == (["compare", "A"], ["to=x", "b=c=d"])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("side=left", Side.LEFT),
        ("sides=left,right,", (Side.LEFT, Side.RIGHT)),
        ("sides=", ()),
        ("ratio=1e3", 1000.0),
        ("deep=true", True),
        ("deep=false", False),
        ("budget=12GB", "12GB"),
        ("to=a=b", Path("a=b")),
    ],
)
def test_values_have_their_types(word: str, value: Any) -> None:
    [(name, found)] = read_options([word], READERS).items()
    assert (name, found) == (word.partition("=")[0], value)
    assert type(found) is type(value) or isinstance(found, Path)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("side", "'side' is not a choice; write option=value"),
        ("speed=3", "'speed' is not an option; there are: side, sides, ratio"),
        ("side=up", "side is one of left, right, not 'up'"),
        ("sides=left,up", "sides is one of left, right, not 'up'"),
        ("ratio=0", "ratio is a positive number, not '0'"),
        ("ratio=nan", "ratio is a positive number, not 'nan'"),
        ("deep=yes", "deep is one of true, false, not 'yes'"),
        ("budget=lots", "budget: 'lots' is not a size"),
    ],
)
def test_a_wrong_word_is_refused(word: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        read_options([word], READERS)


def test_a_class_is_the_choice_of_a_model() -> None:
    words = ["-m", "model._target_=nets.One,nets.Two", "batch_size=2"]
    assert with_own_model(words) == ["-m", "model=own/nets.One,own/nets.Two", "batch_size=2"]
    assert with_own_model(["model=lenet"]) == ["model=lenet"]
    with pytest.raises(MembenchError, match="model._target_=nets.One and model=lenet choose two models"):
        with_own_model(["model=lenet", "model._target_=nets.One"])
