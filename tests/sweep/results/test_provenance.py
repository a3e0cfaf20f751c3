import re
import subprocess
from pathlib import Path

import pytest

from membench.sweep.results import provenance as module
from membench.sweep.results.provenance import provenance


def test_says_where_a_record_comes_from() -> None:
    made = provenance()
    assert made["commit"] is None or re.fullmatch("[0-9a-f]{40}", made["commit"])
    assert isinstance(made["clean"], bool)
    assert {"python", "torch", "torchvision"} <= made["versions"].keys()
    assert made["time"].endswith("+00:00")


def test_a_tree_with_new_results_is_clean_and_one_with_other_changes_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "code.py").touch()
    commit = ["-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "-m", "first"]
    for arguments in (["init", "-q"], ["add", "code.py"], commit):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "code.py"))
    (tmp_path / "results" / "new.csv").touch()
    assert provenance()["clean"]
    (tmp_path / "code.py").write_text("changed")
    assert not provenance()["clean"]
