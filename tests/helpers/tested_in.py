"""Where each module is tested: in a test file of its name, or in the one that `tests/tested_in.yaml` names.

    python -m tests.helpers.tested_in WORD

prints the modules whose path contains the word, each with its test file.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

import membench
from membench.cli.commands import COMMANDS, module_of
from membench.core.configuration import ROOT

TABLE = "tests/tested_in.yaml"
IMPORTS = 3
"""The most modules that lie between a module and what its test file, or a helper of the test file, names."""
_CODE = ("membench", "experiments")


def table() -> dict[str, str]:
    """Return the test file of each module without one of its name, in the order of the table."""
    entries: dict[str, str] = yaml.safe_load((ROOT / TABLE).read_text())
    return entries


def modules() -> list[str]:
    """Return the paths of all modules but `__init__` and `__main__` where these only import and call."""
    paths = sorted(path for folder in _CODE for path in (ROOT / folder).rglob("*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths if "__" not in path.stem or _defines(path)]


def _defines(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in _tree(path).body)


def of_its_name(module: str) -> str | None:
    """Return the test file that is named like a module, None where there is none."""
    path = Path(module)
    named = path.parent if path.stem == "__init__" else path
    if path.parts[0] == "membench":
        folder = Path("tests", *named.parts[1:-1])
    elif named.stem == "metrics":  # of a paper
        folder, named = Path("tests/experiments/metrics"), named.parent
    else:
        folder = Path("tests/experiments/programs")
    test = folder / f"test_{named.stem}.py"
    return test.as_posix() if (ROOT / test).exists() else None


def reaches(test: str, module: str) -> bool:
    """Return whether a test file, or a helper of it, imports or names a module, or one that needs it.

    At most `IMPORTS` modules lie between.
    """
    found = {path for helper in _with_helpers(ROOT / test) for path in _named(helper)}
    for _ in range(IMPORTS):
        found |= {path for each in found for path in _named(each)}
    return ROOT / module in found


def _with_helpers(test: Path) -> set[Path]:
    found, waiting = set(), [test]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _named(path, ("tests",))
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _named(path: Path, roots: tuple[str, ...] = _CODE) -> frozenset[Path]:
    """Return the modules that a file names: in imports, in texts, as a command, and as attributes of `membench`."""
    return frozenset(found for name in _names(path) if name.partition(".")[0] in roots for found in _files(name))


def _names(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in COMMANDS:
                yield module_of(node.value)
            yield from re.findall(r"\b(?:membench|experiments|tests)(?:\.\w+)+", node.value)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "membench":
            yield membench._LAZY.get(node.attr, "")


@cache
def _files(name: str) -> tuple[Path, ...]:
    """Return the file of a dotted name: of the module that it is, or in which it lies."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        path = ROOT.joinpath(*parts[:length])
        found = [path.with_suffix(".py"), path / "__init__.py"]
        if any(map(Path.exists, found)):
            return tuple(filter(Path.exists, found))
    return ()


def main(word: str) -> None:
    entries = table()
    for module in modules():
        if word in module:
            print(f"{module}: {of_its_name(module) or entries.get(module)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
