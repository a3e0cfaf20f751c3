"""Files that strangers could write: none is unpickled, reaches a shell, or builds objects from YAML."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from membench.core.configuration import ROOT, read_options
from membench.core.errors import MembenchError

SOURCES = [
    path for folder in ("membench", "paper_figs", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
]
UNSAFE = {
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "os.popen",
    "os.system",
    "pickle",
    "shelve",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "torch.jit.load",
    "torch.load",
    "yaml.full_load",
    "yaml.unsafe_load",
}
"""Modules and functions that read pickles, build any object, or run a shell."""
RESTRICTED = {
    "membench/advice/cluster/jobs.py": [
        "joblib.externals.loky.backend.reduction",
        "joblib.externals.loky.backend.reduction.dumps",
        "pickle",
        "pickle.dumps",
        "pickle.loads",
    ],
    "membench/advice/device/processes.py": ["pickle", "pickle.dumps", "pickle.loads"],
    "membench/advice/pool/workers.py": [
        "joblib.externals.loky",
        "joblib.externals.loky.BrokenProcessPool",
        "joblib.externals.loky.ProcessPoolExecutor",
        "joblib.externals.loky.process_executor",
    ],
    "membench/capture/kept.py": [
        "pickle",
        "pickle.HIGHEST_PROTOCOL",
        "pickle.Pickler",
        "pickle.PicklingError",
        "pickle.Unpickler",
        "pickle.UnpicklingError",
    ],
    "membench/conformance/plans.py": ["pickle", "pickle.dumps", "pickle.loads"],
    "membench/data/cifar10.py": ["pickle", "pickle.UnpicklingError", "pickle.Unpickler"],
    "membench/pictures/snapshot.py": ["pickle", "pickle.dumps"],
}
"""Snapshots are only written, in the form that PyTorch's viewers read.

CIFAR-10 is distributed as pickles, and kept graphs are; tests of both show that reading one calls nothing. The
processes of an advice are children of the caller's own, and read what it has written. The contract reads the schedule
that it has just written.
"""


def unsafe_names(text: str) -> Iterator[str]:
    """Yield what a program names of `UNSAFE`, and the keywords that make other functions unsafe."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            yield ast.unparse(node)
        yield from (name for name in names if name in UNSAFE or name.partition(".")[0] in UNSAFE)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import pickle\npickle.loads(b'')", ["pickle", "pickle.loads"]),
        ("from torch import load", ["torch.load"]),
        ("import torch\ntorch.load('x')", ["torch.load"]),
        ("np.load('x', allow_pickle=True)", ["allow_pickle=True"]),
        ("subprocess.run('ls', shell=True)", ["shell=True"]),
        ("json.loads('[]')", []),
    ],
)
def test_the_search_finds_what_is_unsafe(program: str, expected: list[str]) -> None:
    assert list(unsafe_names(program)) == expected


def test_nothing_is_unpickled_and_no_shell_is_run() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): names for path in SOURCES if (names := list(unsafe_names(path.read_text())))
    }
    assert {name: sorted(set(names)) for name, names in found.items()} == {
        name: sorted(names) for name, names in RESTRICTED.items()
    }


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!!python/object/new:list"]
)
def test_yaml_builds_no_objects(tag: str, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(f"name: {tag} ['touch {tmp_path}/made']\n")
    with pytest.raises(MembenchError, match="model.yaml is not valid YAML: could not determine a constructor"):
        read_options(path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.yaml"]
