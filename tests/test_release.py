"""What is released: its metadata agree, and what a workflow runs is pinned."""

import json
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import membench
from membench.core.configuration import ROOT
from tests.helpers.pages import PAGES

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


def test_the_lock_has_the_versions_that_the_tests_run_with_and_a_hash_of_each_file() -> None:
    locked, tested = (_versions(ROOT / name) for name in ("requirements.lock", "constraints.txt"))
    required = {_plain(re.split(r"[\[<>=~ ]", each)[0]) for each in PROJECT["dependencies"]}
    assert required <= set(locked)
    assert {name: tested[name] for name in locked if name in tested} | {"setuptools": locked["setuptools"]} == locked
    entries = re.split(r"\n(?=\w)", (ROOT / "requirements.lock").read_text())
    assert len(entries) == len(locked) and all("--hash=sha256:" in entry for entry in entries)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _versions(path: Path) -> dict[str, str]:
    return {_plain(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.M)}


def test_the_readme_away_from_the_repository_has_neither_its_pictures_nor_relative_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = SimpleNamespace(MetadataHookInterface=object)  # of hatchling, which the build alone has
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", hooks)
    names: dict[str, Any] = {}
    exec((ROOT / "hatch_build.py").read_text(), names)
    text = PAGES["README.md"].read_text()
    relative = re.compile(r"\]\((?!https://)|src=")
    assert relative.search(text)
    alone, linked = (names["away_from_home"](text, address) for address in ("", "https://home/blob/v1"))
    assert not relative.search(alone) and not relative.search(linked)
    assert "[limits](https://home/blob/v1/docs/limits.md)" in linked and "[limits]" not in alone
