"""Bare words and ``name=value`` words, read into typed values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import pytest

from membench.cli.words import FLAG, NameIn, in_own_words, read_options, read_size, readers_of, split
from membench.core.checks import NOT_NEGATIVE
from membench.core.errors import MembenchError


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Declared(TypedDict):
    side: Side
    sides: tuple[Side, ...]
    ratio: float
    least: Annotated[float | None, NOT_NEGATIVE]
    deep: bool
    count: int | None
    end: Literal["left", "right"]
    framework: Annotated[str, NameIn(("framework",), left_out=("caffe",))]
    budget: Annotated[str, read_size]
    to: Path
    bare: Annotated[str, FLAG]
    anything: dict[str, Any]


def test_bare_words_are_separated_from_options() -> None:
    assert split(["compare", "to=x", "A", "b=c=d"]) == (["compare", "A"], ["to=x", "b=c=d"])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("side=left", Side.LEFT),
        ("sides=left,right,", (Side.LEFT, Side.RIGHT)),
        ("sides=", ()),
        ("ratio=1e3", 1000.0),
        ("least=0", 0.0),
        ("count=3", 3),
        ("end=right", "right"),
        ("framework=torch7", "torch7"),
        ("deep=true", True),
        ("deep=false", False),
        ("budget=12GB", "12GB"),
        ("to=a=b", Path("a=b")),
    ],
)
def test_values_have_their_types(word: str, value: Any) -> None:
    [(name, found)] = read_options([word], Declared).items()
    assert (name, found) == (word.partition("=")[0], value)
    assert type(found) is type(value) or isinstance(found, Path)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("side", "'side' is not a choice; write option=value"),
        ("speed=3", "option 'speed' is not known.* are: side, sides, ratio"),
        ("side=up", "side 'up' is not known.* are: left, right"),
        ("sides=left,up", "sides 'up' is not known.* are: left, right"),
        ("ratio=0", "ratio is a positive number, not '0'"),
        ("ratio=nan", "ratio is a positive number, not 'nan'"),
        ("least=-1", "least is a number and not negative, not '-1'"),
        ("count=0", "count is a positive whole number, not '0'"),
        ("end=up", "end 'up' is not known.* are: left, right"),
        ("framework=caffe", "framework 'caffe' is not known.* are: .*"),
        ("bare=x", "option 'bare' is not known"),
        ("anything=x", "option 'anything' is not known"),
        ("deep=yes", "deep 'yes' is not known.* are: true, false"),
        ("budget=lots", "budget: 'lots' is not a size"),
    ],
)
def test_a_wrong_word_is_refused(word: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        read_options([word], Declared)


def test_options_are_those_with_a_type_that_a_text_can_have() -> None:
    assert readers_of(Declared).keys() == get_type_hints(Declared).keys() - {"bare", "anything"}


def test_a_class_is_the_choice_of_a_model() -> None:
    words = ["-m", "model._target_=nets.One,nets.Two", "batch_size=2"]
    assert in_own_words(words, ("model",)) == ["-m", "model=own/nets.One,own/nets.Two", "batch_size=2"]
    assert in_own_words(["model=lenet"], ("model",)) == ["model=lenet"]
    with pytest.raises(MembenchError, match="model._target_=nets.One and model=lenet choose two models"):
        in_own_words(["model=lenet", "model._target_=nets.One"], ("model",))
