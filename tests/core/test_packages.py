"""An installed package adds files of conf, strategies among them; without it they are gone."""

from pathlib import Path

import pytest

from membench.cli.completion import completions
from membench.cli.main import main
from membench.core.configuration import CONF_DIRECTORY, names, read
from membench.core.errors import MembenchError
from membench.core.packages import added_packages, folder_of
from membench.steps.arguments import as_strategy
from membench.strategies.base import find_strategy, strategies
from membench.sweep.results.sources import module_of
from tests.helpers.added_package import added

STRATEGY = """
from membench.strategies.eager import Eager


class Kept(Eager):
    name = "kept"
"""
CARD = (CONF_DIRECTORY / "device" / "rtx3060.yaml").read_text().replace("name: rtx3060", "name: my_card")


def test_its_files_are_there_while_it_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "kept.py": STRATEGY,
        "conf/strategy/kept.yaml": "_target_: adds_a_strategy.kept.Kept\n",
        "conf/device/my_card.yaml": CARD,
    }
    before = {group: names(group) for group in ("strategy", "device")}
    with added(tmp_path, "adds_a_strategy", files):
        assert {*names("strategy")} - {*before["strategy"]} == {"kept"}
        assert read("device", "my_card")["name"] == "my_card"
        assert type(as_strategy("Kept")).__module__ == "adds_a_strategy.kept"
        assert "kept" in strategies()
        assert completions("membench run strategy=kep") == ["kept"]
        assert module_of("adds_a_strategy.kept.Kept") is not None  # its sources decide a record
        assert main(["run", "model=digits_cnn", "strategy=kept", "device=my_card", "--cfg", "job"]) == 0
        assert "_target_: adds_a_strategy.kept.Kept" in capsys.readouterr().out
    assert {group: names(group) for group in before} == before
    with pytest.raises(MembenchError, match="strategy 'kept' is not known"):
        find_strategy("kept")


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(MembenchError, match="there is no package 'gone.for_good' to be imported; install it, or"):
        folder_of("gone.for_good")
    assert all(folder.is_dir() for folder in added_packages().values())
