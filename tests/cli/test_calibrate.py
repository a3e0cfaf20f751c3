"""`membench calibrate` changes only files that its words name."""

import re
from pathlib import Path

import pytest

from membench.cli import calibrate
from membench.cli.main import main
from membench.core.configuration import CONF_DIRECTORY


def _content() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in CONF_DIRECTORY.rglob("*.yaml")}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            [],
            "name what to calibrate: `device=cuda`, `framework=caffe device=k40m`, `codec`, `waves` or `kernels`",
        ),
        (["framework=caffe"], "name what to calibrate"),
        (["device=k40m"], "name what to calibrate"),
        (["framework=caffe", "device=cuda"], "name what to calibrate"),
        (["framework=cafe", "device=k40m"], "framework is one of caffe, .* did you mean 'caffe'"),
        (["framework=caffe", "device=k40"], "device is one of cuda, .* did you mean 'k40c' or 'k40m'"),
        (["codecs"], "'codecs' is not a choice"),
        (["--config-dir"], "--config-dir: a folder has to follow it"),
    ],
)
def test_a_wrong_word_is_one_line_and_changes_nothing(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _content()
    assert main(["calibrate", *words]) == 2
    answered = capsys.readouterr().err
    assert answered.count("\n") == 1
    assert re.search(f"^membench calibrate: {answer}", answered)
    assert _content() == before


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["framework=caffe", "device=k40m"], "a fit reads a paper's numbers, which are not installed"),
        (["codec"], "a fit reads a paper's numbers, which are not installed"),
        (["device=cuda"], "name the folder to write into, as in: device=cuda --config-dir my_conf"),
    ],
)
def test_an_installed_package_is_not_written_into(
    words: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "IS_INSTALLED", True)
    assert main(["calibrate", *words]) == 2
    assert capsys.readouterr().err.startswith(f"membench calibrate: {answer}")
