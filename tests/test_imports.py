"""The one-way flow of the package: an ordered list of packages, each importing only itself and earlier ones."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import membench

PACKAGE = Path(membench.__file__).parent
ORDER = (
    "core", "models", "data", "capture", "cost", "codecs", "planning", "frameworks", "backends", "execution",
    "strategies", "profiling", "steps", "pictures", "sweep", "advice", "conformance", "cli", "lab",
)  # fmt: skip
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("*/__init__.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the package of membench that each import of a file names, those within functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            if node.module == "membench":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("membench."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("membench."))


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the full name of each module that a file imports, those within functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_lies_in_one_of_the_packages() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_itself_and_earlier_ones(package: str) -> None:
    allowed = set(ORDER[: ORDER.index(package) + 1])
    for path in (PACKAGE / package).rglob("*.py"):
        upward = set(imports(path)) - allowed
        assert not upward, f"{path.relative_to(PACKAGE)} imports {sorted(upward)}, which come after {package}"


def test_figures_need_neither_torch_nor_membench() -> None:
    for path in (PACKAGE.parent / "paper_figs").rglob("*.py"):
        roots = {name.partition(".")[0] for name in imported_modules(path)}
        assert not roots & {"torch", "membench"}, path


def test_tests_share_helpers_and_not_test_modules() -> None:
    for folder in ("tests", "benchmarks"):
        for path in (PACKAGE.parent / folder).rglob("*.py"):
            for name in imported_modules(path):
                if name.partition(".")[0] == "tests":
                    assert name.startswith("tests.helpers"), f"{path}: put what {name} shares into tests/helpers"


def test_the_package_docstring_lists_the_packages_in_their_order() -> None:
    assert tuple(re.findall(r"^([a-z]+) {2,}\S", membench.__doc__ or "", re.MULTILINE)) == ORDER


def _room(name: str, folder: str) -> str:
    """Return the file or folder of a package in which a module lies; empty if it lies elsewhere."""
    return name.removeprefix(f"{folder}.").partition(".")[0] if name.startswith(f"{folder}.") else ""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_folders_of_a_package_have_an_order(folder: Path) -> None:
    """None imports another one that imports it, directly or through others."""
    package = ".".join(folder.relative_to(PACKAGE.parent).parts)
    needs: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        if path.parent == folder and path.stem == "__init__":
            continue
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        rooms = {_room(name, package) for name in imported_modules(path)} - {"", own}
        needs.setdefault(own, set()).update(rooms)
    assert set(TopologicalSorter(needs).static_order()) >= needs.keys()  # a circle raises an error


def test_the_library_imports_nothing_of_the_laboratory() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "lab" not in path.relative_to(PACKAGE).parts:
            assert not any(name.startswith("membench.lab") for name in imported_modules(path)), path
