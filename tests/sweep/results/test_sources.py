"""The sources that decide a result."""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
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
    for cached in (sources.hash_of, sources.read_module, sources.module_of):
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


def test_a_syntax_error_is_refused_with_its_line(package: Path) -> None:
    (package / "layers.py").write_text("class Layer: pass\ndef broken(:\n")
    with pytest.raises(MembenchError, match=r"mynets/layers.py, line 2: invalid syntax$"):
        _hash()


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


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads that take turns within a parse, which collects garbage."""

    def take_a_while(*_: object) -> None:
        sum(range(9999))

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(take_a_while)
    yield
    gc.callbacks.remove(take_a_while)
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("restless_threads")
def test_threads_may_ask_at_the_same_time() -> None:
    paths = sorted((ROOT / "membench").rglob("*.py"))[:80]
    with ThreadPoolExecutor(8) as pool:
        digests = [digest for digest, _ in pool.map(sources.read_module.__wrapped__, 3 * paths)]
    assert digests == 3 * [sha256(path.read_bytes()).hexdigest() for path in paths]
