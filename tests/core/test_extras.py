"""Extras: the sentence that names a missing one, and the agreement with pyproject.toml."""

import re
import sys
import tomllib

import pytest

from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.core.extras import PACKAGES, WITH, require

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", PACKAGES)
def test_an_extra_brings_what_is_looked_for(extra: str) -> None:
    [others, own] = [[each for each in EXTRAS[extra] if each.startswith("membench[") is own] for own in (True, False)]
    assert {re.split(r"[<>=]", each)[0] for each in own} == PACKAGES[extra].keys()
    named = ",".join(re.findall(r"\[(.+)\]", "".join(others)))
    assert tuple(filter(None, named.split(","))) == WITH.get(extra, ())


def test_a_missing_package_is_one_sentence_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("dataframes", "a DataFrame")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MembenchError, match=r"^a DataFrame needs pandas: pip install 'membench\[dataframes\]'$"):
        require("dataframes", "a DataFrame")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MembenchError, match=r"^it needs pandas, wandb: pip install 'membench\[wandb\]'$"):
        require("wandb", "it")
