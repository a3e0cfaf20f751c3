"""Configuration files by name: a method is called by the word that chooses it."""

import pytest

from membench.core.configuration import method_of, names, read

METHODS = [(group, name) for group in ("strategy", "baseline", "study") for name in names(group)]


@pytest.mark.parametrize(("group", "name"), METHODS)
def test_a_method_is_called_by_the_word_that_chooses_it(group: str, name: str) -> None:
    place = "study" if group == "study" else "strategy"
    assert method_of({"strategy": read("strategy", "eager"), place: read(group, name)}) == name


def test_a_user_defined_strategy_is_called_by_its_class() -> None:
    assert method_of({"strategy": {"_target_": "somewhere.else.Mine"}}) == "Mine"
