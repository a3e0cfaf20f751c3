"""The contract runs over a package that adds to membench, and names what its files break."""

from pathlib import Path

import pytest

from membench.cli.main import main
from membench.conformance.package import check_package
from membench.core.configuration import CONF_DIRECTORY
from membench.core.errors import MembenchError
from tests.helpers.added_package import added

STRATEGIES = '''
from dataclasses import replace

from membench.strategies import ScheduleBuilder, Strategy, compute_on_demand


class Plain(Strategy):
    name = "plain_walk"
    plans_for_budgets = False

    def schedule(self, graph, cost, budget_bytes):
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()


class Changing(Plain):
    """Plans another schedule each time."""

    name = "changing"
    times = 0

    def schedule(self, graph, cost, budget_bytes):
        Changing.times += 1
        return replace(super().schedule(graph, cost, budget_bytes), reason=f"{Changing.times}")
'''
MODEL = (CONF_DIRECTORY / "model" / "digits_cnn.yaml").read_text().replace("name: digits_cnn", "name: mine")
CARD = (CONF_DIRECTORY / "device" / "rtx3060.yaml").read_text()
FILES = {
    "methods.py": STRATEGIES,
    "conf/strategy/plain_walk.yaml": "_target_: adds_all.methods.Plain\n",
    "conf/strategy/changing.yaml": "_target_: adds_all.methods.Changing\n",
    "conf/model/mine.yaml": MODEL,
    "conf/device/rtx3060.yaml": CARD,
    "conf/device/other_name.yaml": CARD,
    "conf/gpu/card.yaml": CARD,
}


def test_each_file_is_checked_and_what_it_breaks_is_named(tmp_path: Path) -> None:
    with added(tmp_path, "adds_all", FILES):
        found = list(check_package("adds_all", ["squeezenet"]))
    broken = {(each.file, each.what): each.broken for each in found}
    assert not any(broken[key] for key in broken if key[0] in ("strategy/plain_walk.yaml", "model/mine.yaml"))
    assert ("strategy/plain_walk.yaml", "squeezenet") in broken
    assert "another schedule the second time" in broken["strategy/changing.yaml", "squeezenet"]
    assert "membench has device=rtx3060 itself" in broken["device/rtx3060.yaml", "the group and the name are free"]
    assert "name is 'rtx3060'" in broken["device/other_name.yaml", "it describes what its group has"]
    assert "no group 'gpu'" in broken["gpu/card.yaml", "the group and the name are free"]


def test_a_file_whose_class_is_not_there_is_named(tmp_path: Path) -> None:
    with added(tmp_path, "adds_gone", {"conf/strategy/gone.yaml": "_target_: adds_gone.Gone\n"}):
        broken = {each.what: each.broken for each in check_package("adds_gone", [])}
    assert "adds_gone.Gone cannot be imported" in broken["it describes what its group has"]


def test_a_package_that_adds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MembenchError, match="no installed package names 'elsewhere' in an entry point"):
        list(check_package("elsewhere", []))
    with added(tmp_path, "adds_none", {}), pytest.raises(MembenchError, match="adds_none adds nothing"):
        list(check_package("adds_none", []))


def test_the_command_exits_with_1_where_a_check_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with added(tmp_path, "adds_a_card", {"conf/device/rtx3060.yaml": CARD}):
        assert main(["check", "adds_a_card"]) == 1
    shown = capsys.readouterr().out
    assert "choose another name" in shown
    assert "2 checks hold, 1 do not" in shown
    assert main(["check"]) == 2
