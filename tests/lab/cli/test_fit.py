"""`membench fit` changes only files that its words name."""

import re
from pathlib import Path

import pytest

from membench.cli.main import main
from membench.core.configuration import CONF_DIRECTORY


def _content() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in CONF_DIRECTORY.rglob("*.yaml")}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "name what to fit: `framework=caffe device=k40m`, `codec`, `waves` or `kernels`"),
        (["framework=caffe"], "name what to fit"),
        (["device=k40m"], "name what to fit"),
        (["framework=cafe", "device=k40m"], "framework 'cafe' is not known; did you mean 'caffe'"),
        (["framework=caffe", "device=k40"], "device 'k40' is not known; did you mean 'k40c' or 'k40m'"),
        (["codecs"], "'codecs' is not a choice"),
        (["--config-dir"], "--config-dir: a folder has to follow it"),
    ],
)
def test_a_wrong_word_is_one_line_and_changes_nothing(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _content()
    assert main(["fit", *words]) == 2
    answered = capsys.readouterr().err
    assert answered.count("\n") == 1
    assert re.search(f"^membench fit: {answer}", answered)
    assert _content() == before
