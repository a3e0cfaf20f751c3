"""The sources that decide a result."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

import membench
from membench.sweep import sources

VDNN = {"strategy": {"_target_": "membench.strategies.vdnn.VdnnAll"}}
MYNETS = {"model": {"module": {"_target_": "mynets.net.Net"}}, "losses": [{"p": 1}]}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the user's own."""
    folder = tmp_path / "mynets"
    (folder / "deep").mkdir(parents=True)
    for name in ("__init__", "net", "layers", "deep/more"):
        (folder / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    sources._digest.cache_clear()


def _hash(configuration: object) -> str:
    """Return the hash as another process computes it."""
    sources._digest.cache_clear()
    return sources.sources_hash(configuration)


@pytest.mark.parametrize("name", ["net", "layers", "deep/more"])
def test_each_file_of_a_user_s_package_counts(package: Path, name: str) -> None:
    before = _hash(MYNETS)
    assert _hash(MYNETS) == before
    (package / f"{name}.py").write_text("depth = 2\n")
    assert _hash(MYNETS) != before


def test_of_a_module_in_no_package_the_files_next_to_it_count(package: Path) -> None:
    folder = package.parent
    (folder / "mynet.py").write_text("import mylayers\n")
    (folder / "mylayers.py").touch()
    before = _hash({"metrics": "mynet.step_metrics"})
    (package / "net.py").write_text("depth = 2\n")
    assert _hash({"metrics": "mynet.step_metrics"}) == before
    (folder / "mylayers.py").write_text("depth = 2\n")
    assert _hash({"metrics": "mynet.step_metrics"}) != before


def test_what_the_configuration_does_not_name_does_not_count(package: Path) -> None:
    before = _hash(VDNN)
    (package / "net.py").write_text("depth = 2\n")
    assert _hash(VDNN) == before


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("strategies/vdnn.py", True),
        ("sweep/cell.py", True),
        ("planning/builder.py", True),
        ("papers/metrics/vdnn.py", True),
        ("papers/paper_page.py", False),
        ("pictures/picture.py", False),
        ("training/runs.py", False),
        ("cli/run.py", False),
    ],
)
def test_the_files_of_membench_that_decide_a_cell_count(
    name: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = copytree(Path(membench.__file__).parent, tmp_path / "membench")
    monkeypatch.setattr(sources, "_OWN", own)
    before = _hash(VDNN)
    with (own / name).open("a") as file:
        file.write("# changed\n")
    assert (_hash(VDNN) != before) == counts
    sources._digest.cache_clear()


def test_a_target_that_does_not_exist_is_not_an_error() -> None:
    assert sources.sources_hash({"strategy": {"_target_": "missing.module.This"}})


def test_what_is_installed_is_not_read_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "theirnets.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    assert not list(sources._files("theirnets"))
    assert not list(sources._files("torch"))
    assert not list(sources._files("sys"))
