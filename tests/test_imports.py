"""The one-way flow of the design: nouns import no verbs, and verbs do not import each other."""

import ast
from pathlib import Path

import pytest

import membench.units

PACKAGE = Path(membench.units.__file__).parent
NOUNS = {
    "call", "checks", "cluster", "codec", "convolution", "cost_model", "dataset", "device", "efficiency", "errors", "experiment",
    "offsets", "recipe", "record", "schedule", "task_graph", "timeline", "units", "workload",
}  # fmt: skip
VERBS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - NOUNS
ALLOWED = {
    "strategies": {"planning", "codecs"},
    "execution": {"backends"},
    "cost": {"backends", "execution"},  # measuring a task alone runs it
    "frameworks": {"cost"},  # which algorithms a framework takes follows from what they compute
    "report": {"suite"},
}
ENTRY_POINTS = {"calibrate", "suite"}  # wire everything together


def imported(path: Path) -> set[str]:
    """Return the parts of membench that a file imports, by the first name under the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("membench."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "membench":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(a.name.split(".")[1] for a in node.names if a.name.startswith("membench."))
    return found


@pytest.mark.parametrize("noun", sorted(NOUNS))
def test_nouns_import_only_nouns(noun: str) -> None:
    module = PACKAGE / f"{noun}.py"  # or a package whose command draws or prints the noun
    assert imported(module if module.exists() else PACKAGE / noun / "__init__.py") <= NOUNS


@pytest.mark.parametrize("verb", sorted(VERBS - ENTRY_POINTS - {"report"}))
def test_verbs_do_not_import_each_other(verb: str) -> None:
    for path in (PACKAGE / verb).glob("*.py"):
        others = (imported(path) & VERBS) - {verb} - ALLOWED.get(verb, set())
        assert not others, f"{path.name} imports {others}"


def test_figures_need_no_torch() -> None:
    for path in (PACKAGE.parent / "paper_figs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"torch", "membench"}, path
