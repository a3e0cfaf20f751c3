"""The shape of the tests: files named like the modules that they test, and an assertion in every test."""

import ast
from pathlib import Path

import pytest

import membench

PACKAGE = Path(membench.__file__).parent
TESTS = Path(__file__).parent
FOLDERS = sorted({path.parent for path in TESTS.rglob("test_*.py") if path.parent != TESTS})
BEHAVIOURS = {
    "backends": {"encoding"},
    "capture": {"aten_on_cuda"},
    "codecs": {"cuda_kernels"},
    "cost": {"measured_rates"},
    "models": {"model_configurations"},
    "steps": {"disk", "host_memory", "loops"},
    "strategies": {"shared_weights"},
    "sweep": {"cluster", "slurm", "sweep"},
}
"""Tests of what several modules of a package do together, by package."""
CHECKS = ("check", "assert", "refuse", "validate")
"""How the names of functions begin that assert, or raise an error for a wrong schedule."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_file_is_named_like_a_module_or_a_behaviour(folder: Path) -> None:
    package = PACKAGE / folder.relative_to(TESTS)
    if not package.is_dir():
        return
    modules = {path.stem for path in package.glob("*.py")} | {path.name for path in package.iterdir()}
    tested = {path.stem.removeprefix("test_") for path in folder.glob("test_*.py")}
    assert tested - modules == BEHAVIOURS.get(folder.relative_to(TESTS).as_posix(), set())


def asserts(test: ast.FunctionDef) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("raises", "warns") or name.lstrip("_").startswith(CHECKS):
                return True
            if any(word.arg == "check" and ast.unparse(word.value) == "True" for word in node.keywords):
                return True  # a process whose failure fails the test
    return False


def test_every_test_asserts() -> None:
    silent = [
        f"{path.relative_to(TESTS)}: {node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not asserts(node)
    ]
    assert not silent, "\n".join(silent)
