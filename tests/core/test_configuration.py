"""Configuration files by name: a method is called by the word that chooses it."""

from pathlib import Path

import pytest

from membench.core.configuration import method_of, names, read
from membench.core.errors import MembenchError

METHODS = [(group, name) for group in ("strategy", "baseline") for name in names(group)]


@pytest.mark.parametrize(("group", "name"), METHODS)
def test_a_method_is_called_by_the_word_that_chooses_it(group: str, name: str) -> None:
    assert method_of({"strategy": read(group, name)}) == name


def test_a_user_defined_strategy_is_called_by_its_class() -> None:
    assert method_of({"strategy": {"_target_": "somewhere.else.Mine"}}) == "Mine"


def test_a_folder_of_the_users_adds_files_and_hides_none(tmp_path: Path) -> None:
    (tmp_path / "backend").mkdir()
    for name in ("mine", "cpu"):
        (tmp_path / "backend" / f"{name}.yaml").write_text("name: mine\n")
    assert names("backend", tmp_path) == ["cpu", "cuda", "mine", "simulated", "xpu"]
    assert read("backend", "mine", tmp_path) == {"name": "mine"}
    assert read("backend", "cpu", tmp_path) == read("backend", "cpu")
    with pytest.raises(MembenchError, match="backend 'mine' is not known.* are: cpu, cuda, simulated, xpu$"):
        read("backend", "mine")
    with pytest.raises(MembenchError, match="backend 'mein' is not known; did you mean 'mine'"):
        read("backend", "mein", tmp_path)
