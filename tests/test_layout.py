"""The shape of the tests: each module has a test file, by its name or by a table, and every test asserts."""

import ast
from pathlib import Path

import pytest

import membench
from tests.helpers.tested_in import ROOT, TABLE, modules, of_its_name, reaches, table

PACKAGE = Path(membench.__file__).parent
TESTS = Path(__file__).parent
FOLDERS = sorted({path.parent for path in TESTS.rglob("test_*.py") if path.parent != TESTS})
BEHAVIOURS = {
    "backends": {"encoding"},
    "capture": {"aten_on_cuda", "attention_choices", "composites"},
    "codecs": {"cuda_kernels"},
    "models": {"model_configurations"},
    "steps": {"answers", "disk", "host_memory", "loops"},
    "steps/real": {"kinds_of_state"},
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


def test_each_module_has_a_test_file_of_its_name_or_an_entry_in_the_table() -> None:
    missing = [module for module in modules() if not of_its_name(module) and module not in table()]
    assert not missing, f"write a test file of its name, or an entry in {TABLE}:\n" + "\n".join(missing)


def test_each_entry_of_the_table_is_needed_and_names_a_test_that_uses_the_module() -> None:
    """`python -m tests.helpers.tested_in WORD` prints where modules are tested."""
    entries, known = table(), set(modules())
    wrong = [f"{module}: there is no such module" for module in entries.keys() - known]
    wrong += [f"{module}: {of_its_name(module)} is its test" for module in entries if of_its_name(module)]
    for module, test in entries.items():
        if not (ROOT / test).is_file():
            wrong.append(f"{module}: there is no {test}")
        elif module in known and not reaches(test, module):
            wrong.append(f"{module}: {test} uses neither it nor what needs it")
    assert not wrong, f"{TABLE}:\n" + "\n".join(sorted(wrong))
    assert list(entries) == sorted(entries), f"{TABLE} is not sorted"


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
