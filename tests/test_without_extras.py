"""An installation without extras: what it can do, and the sentence where a feature needs one.

Every package that is no requirement of membench, nor of its requirements, is hidden from all processes of a test.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from membench.core.configuration import ROOT
from membench.core.extras import PACKAGES

HIDING = """
import os, sys

class Hiding:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *others):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, *others)

HIDDEN = frozenset(os.environ["HIDDEN"].split())
sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
CAN = """
import torch
from torch import nn
import membench
import membench.advice.pool.workers  # several processes, which take seconds to start
from membench.cli.main import main

SMALL = ["model=digits_cnn", "device=k40m", "batch_size=8"]
for words in (
    ["predict", *SMALL, "output=csv"],
    ["advise", *SMALL, "methods=pytorch", "largest=none", "levers=false", "processes=1"],
    ["run", "-m", *SMALL, "strategy=eager,layrub_hybrid"],
    ["report", "sweep", "output=csv"],
):
    print(words, flush=True)
    assert main(words) == 0, words
model, batch = nn.Linear(8, 8), (torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))
step = membench.compile(model, nn.CrossEntropyLoss(), batch, strategy="joint")
step(*batch)
assert model.weight.grad is not None
try:
    membench.predict(model, nn.CrossEntropyLoss(), batch, device="rtx4090").to_dataframe()
except membench.MembenchError as error:
    assert "membench[dataframes]" in str(error)
"""
CANNOT = {
    ("timeline", "model=digits_cnn", "device=k40m"): "figures",
    ("frontier", "model=digits_cnn", "device=k40m"): "figures",
    ("advise", "model=digits_cnn", "device=k40m", "output=html"): "figures",
    ("advise", "model=digits_cnn", "device=k40m", "tracking=offline"): "wandb",
    ("run", "model=digits_cnn", "device=k40m", "tracking=offline"): "wandb",
    ("run", "model=digits_cnn", "device=k40m", "tracking=tensorboard"): "tensorboard",
    ("run", "model=digits_cnn", "device=k40m", "hydra/launcher=joblib"): "launchers",
    ("predict", "model=timm/resnet18", "device=k40m"): "zoo",
    ("predict", "model=hf/gpt2", "device=k40m"): "zoo",
    ("app",): "app",
    ("bench", "check=rows.json"): "rows",
    ("check", "my_package"): "lab",
    ("fit",): "lab",
    ("report",): "lab",
    ("reproduce", "layrub"): "lab",
    ("run", "paper=layrub"): "lab",
    ("train", "layrub"): "lab",
    ("validate",): "lab",
}
"""Words that need an extra, and which."""


def _required() -> set[str]:
    """Return the names of all packages that an installation without extras brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, waiting = set[str](), [Requirement(each) for each in project["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, distribution(name).requires or ())
    return found


def _hidden() -> Iterator[str]:
    """Yield the modules that only other packages bring."""
    required = _required() | {"membench"}
    for module, brought_by in packages_distributions().items():
        if not required & set(map(canonicalize_name, brought_by)):
            yield module


IMPORTING = {
    "advice/cluster/picture.py": {"matplotlib"},
    "advice/device/page.py": {"jinja2", "matplotlib"},
    "cli/advise.py": {"matplotlib"},  # for a type checker
    "cli/app.py": {"panel"},
    "cli/app_page.py": {"panel"},
    "conformance/recorded_files.py": {"fastjsonschema"},
    "core/result.py": {"matplotlib", "pandas"},
    "core/tables.py": {"pandas"},  # for a type checker
    "data/digits.py": {"sklearn"},  # trainings, which need a clone
    "data/files.py": {"PIL"},
    "pictures/frontier.py": {"matplotlib"},
    "pictures/measurement.py": {"matplotlib"},
    "pictures/picture.py": {"matplotlib"},
    "pictures/prediction.py": {"matplotlib"},
    "sweep/results/tables.py": {"pandas"},
    "sweep/results/tensorboard_runs.py": {"matplotlib"},
    "sweep/results/tracking.py": {"wandb"},
    "sweep/results/wandb_runs.py": {"pandas", "wandb"},
}
"""Files of the library with the modules of extras that they import. What uses one is refused first, see `require`."""


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_the_page_on_installing_lists_every_extra_that_a_sentence_names() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    listed = {name for cells in re.findall(r"^\| (`.+?) \|", text, re.M) for name in re.findall(r"`(\w+)`", cells)}
    assert listed >= {*PACKAGES, *CANNOT.values()}


def test_only_these_files_import_what_extras_bring() -> None:
    package, brought = ROOT / "membench", {module for each in PACKAGES.values() for module in each.values()}
    paths = [path for path in package.rglob("*.py") if not path.is_relative_to(package / "lab")]
    found = {path.relative_to(package).as_posix(): set(_imported(path)) & brought for path in paths}
    assert {path: modules for path, modules in found.items() if modules} == IMPORTING


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(HIDING)
    hiding = {"HIDDEN": " ".join(_hidden()), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **hiding}, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_extras_are_hidden_and_requirements_are_not() -> None:
    hidden = set(_hidden())
    assert {"matplotlib", "pandas", "seaborn", "sklearn", "wandb", "timm"} <= hidden
    assert not hidden & {"torch", "torchvision", "numpy", "scipy", "hydra", "yaml", "membench"}


@pytest.mark.slow
def test_predictions_advice_and_runs_need_no_extra(tmp_path: Path) -> None:
    made = _run(["-c", CAN], tmp_path)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-4000:]


@pytest.mark.slow
def test_a_word_that_needs_an_extra_names_it_in_one_line(tmp_path: Path) -> None:
    program = f"from membench.cli.main import main\nfor words in {list(CANNOT)!r}:\n"
    program += "    try: code = main(list(words))\n    except SystemExit as error: code = error.code\n    print(code)\n"
    made = _run(["-c", program], tmp_path)
    lines = made.stderr.splitlines()
    assert len(lines) == len(CANNOT), made.stderr
    for words, extra, line in zip(CANNOT, CANNOT.values(), lines, strict=True):
        assert line.startswith(f"membench {words[0]}: ") and f"pip install 'membench[{extra}]'" in line, line
    assert made.stdout.split() == ["2"] * len(CANNOT)
