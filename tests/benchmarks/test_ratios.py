import os
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks.ratios import SHOWN_COMMITS, earlier, keep, page, read
from membench.core.errors import MembenchError

FILES = {path.stem for path in Path(runner.__file__).parent.glob("*.py")} - {"__main__", "ratios"}


def facts(commit: str, day: int, *, clean: bool = True) -> dict[str, object]:
    return {"commit": commit, "time": f"2026-11-{day:02}T00:00:00+00:00", "machine": "m", "clean": clean}


def test_every_benchmark_is_run_and_has_ratios() -> None:
    assert set(runner.BENCHMARKS) == FILES
    for name in runner.BENCHMARKS:
        assert import_module(f"benchmarks.{name}").ratios.__annotations__["return"] == dict[str, float], name


def test_ratios_of_a_commit_are_replaced_and_others_stay(tmp_path: Path) -> None:
    keep(tmp_path, "codecs", {"encode": 1.5, "decode": 2.0}, facts("a" * 40, 1))
    keep(tmp_path, "depth", {"plan": 1.1}, facts("a" * 40, 1))
    keep(tmp_path, "codecs", {"encode": 1.25}, facts("b" * 40, 2))
    keep(tmp_path, "codecs", {"encode": 1.75}, facts("b" * 40, 3))
    kept = read(tmp_path)
    assert sorted(kept.value) == [1.1, 1.5, 1.75, 2.0]
    assert earlier(kept, "codecs", "encode", "b" * 40) == 1.5
    assert earlier(kept, "codecs", "encode", "c" * 40) == 1.75
    assert earlier(kept, "codecs", "another", "b" * 40) is None
    text = (tmp_path / "README.md").read_text()
    assert "| ratio | aaaaaaaa (2026-11-01) | bbbbbbbb (2026-11-03) |" in text
    assert "| encode | 1.500 | 1.750 |" in text and "| decode | 2.000 |  |" in text


def test_the_page_shows_the_latest_commits(tmp_path: Path) -> None:
    for day in range(1, SHOWN_COMMITS + 3):
        keep(tmp_path, "codecs", {"encode": float(day)}, facts(f"{day}" * 8, day))
    text = page(read(tmp_path))
    assert "22222222" not in text and "33333333" in text and "| encode | 3.000 |" in text


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
def test_only_a_checkout_without_changes_keeps_ratios(
    clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "provenance", lambda: facts("d" * 40, 4, clean=clean))
    monkeypatch.setattr(runner, "ratios_of", _ratios)
    keep(tmp_path, "codecs", {"encode": 1.0}, facts("c" * 40, 3))
    runner.run("codecs", tmp_path)
    assert len(read(tmp_path)) == 1 + clean
    printed = capsys.readouterr().out
    assert "encode: 1.500, before 1.000" in printed and ("the checkout has changes" in printed) != clean


@pytest.mark.slow
def test_a_process_that_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ratios_of", _ends)
    with pytest.raises(MembenchError, match="codecs: its process ended"):
        runner.run("codecs", tmp_path)


def _ratios(benchmark: str) -> dict[str, float]:
    return {"encode": 1.5} if benchmark == "codecs" else {}


def _ends(benchmark: str) -> dict[str, float]:
    os._exit(1)
