"""What is released: its metadata agree, and what a workflow runs is pinned."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import membench
from membench.core.configuration import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CODEMETA = json.loads((ROOT / "codemeta.json").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_each_file_states_the_same_version_licence_and_description() -> None:
    assert {CITATION["version"], CODEMETA["version"]} == {membench.__version__}
    assert PROJECT["license"] == CITATION["license"] == CODEMETA["license"].rpartition("/")[2]
    assert CODEMETA["description"] == PROJECT["description"]
    assert CODEMETA["author"][0]["name"] == CITATION["authors"][0]["name"]


def test_no_author_is_cited_twice() -> None:
    for reference in CITATION["references"]:
        names = [tuple(author.values()) for author in reference["authors"]]
        assert len(names) == len(set(names)), reference["title"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_to_a_commit(path: Path) -> None:
    actions = re.findall(r"uses: (\S+)", path.read_text())
    assert actions
    assert not [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)]


def test_the_classifiers_list_the_versions_that_ci_runs() -> None:
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    pythons = tested["jobs"]["tests"]["strategy"]["matrix"]["python"]
    listed = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert listed == pythons
    assert PROJECT["requires-python"] == f">={pythons[0]}"
