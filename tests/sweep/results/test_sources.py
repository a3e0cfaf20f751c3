"""The sources that decide a result."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from membench.core.configuration import ROOT
from membench.sweep.results import sources


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user's own, whose hash is computed afresh."""
    folder = tmp_path / "mynets"
    folder.mkdir()
    for name, text in {
        "__init__": "",
        "net": "from mynets.layers import Layer\nimport sys, torch\n",
        "layers": "class Layer: pass\n",
        "other": "",
    }.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield folder
    _forget()


def _forget() -> None:
    for cached in (sources.hash_of, sources.read_module, sources._place):
        cached.cache_clear()


def _hash() -> str:
    _forget()
    return sources.sources_hash({"model": {"module": {"_target_": "mynets.net.Net"}}, "losses": [{"p": 1}]})


@pytest.mark.slow
def test_what_is_imported_counts_and_what_is_not_does_not(package: Path) -> None:
    before = _hash()
    (package / "other.py").write_text("changed = True\n")
    assert _hash() == before
    (package / "layers.py").write_text("class Layer: depth = 2\n")
    assert _hash() != before


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a.b as c, d\n", {"a.b", "d"}),
        ("if x: import a; import b\n", {"a", "b"}),
        ("from a.b import (  # of (a) b\n    c as d,\n    e,  # and e\n)\n", {"a.b.c", "a.b.e"}),
        ("from a \\\n    import b, \\\r\n    c\r\n", {"a.b", "a.c"}),
        ('"""What is read from\n"""\nimport a\n', {"a"}),
        ("from a import*\nfrom . import b\nimportant = 1\n", set()),
    ],
)
def test_imports_are_found_in_the_text(tmp_path: Path, text: str, names: set[str]) -> None:
    (tmp_path / "net.py").write_bytes(text.encode())
    assert set(sources.read_module.__wrapped__(tmp_path / "net.py")[1]) == names


@pytest.mark.slow
def test_no_import_of_the_package_is_missed() -> None:
    """Python's own parser finds no other one."""
    for path in sorted((ROOT / "membench").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        parsed = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
        of_modules = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        parsed += [f"{node.module}.{each.name}" for node in of_modules for each in node.names]
        assert set(parsed) <= set(sources.read_module(path)[1]), path


def test_the_strategy_of_a_cell_counts_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget()
    read, names = sources.read_module, []

    def noted(path: Path) -> tuple[str, tuple[str, ...]]:
        names.append(path.stem)
        return read(path)

    monkeypatch.setattr(sources, "read_module", noted)
    sources.sources_hash({"strategy": {"_target_": "membench.strategies.vdnn.VdnnAll"}})
    assert {"vdnn", "cell", "builder", "roofline"} <= set(names)
    assert not {"geeps", "superneurons", "runner", "tracking"} & set(names)


def test_a_target_that_does_not_exist_is_not_an_error() -> None:
    assert sources.sources_hash({"strategy": {"_target_": "nobody.knows.This"}})


def test_what_is_installed_is_not_read_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "other" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "theirnets.py").write_text("class Net: pass")
    monkeypatch.syspath_prepend(str(folder))
    _forget()
    assert sources.module_of("theirnets.Net") is None
    assert sources.module_of("json.decoder") is None
    assert sources.module_of("sys") is None
