"""`membench calibrate` measures a GPU, and writes where its words say."""

import pytest

from membench.cli import calibrate
from membench.cli.main import main


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "name what to calibrate: device=cuda"),
        (["device=k40m"], "device 'k40m' is not known; there are: cuda"),
        (["framework=caffe"], "option 'framework' is not known"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *words]) == 2
    answered = capsys.readouterr().err
    assert answered.count("\n") == 1
    assert answered.startswith("membench calibrate: ") and answer in answered


def test_an_installed_package_is_not_written_into(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "IS_INSTALLED", True)
    assert main(["calibrate", "device=cuda"]) == 2
    answer = "name the folder to write into, as in: device=cuda --config-dir my_conf"
    assert capsys.readouterr().err == f"membench calibrate: {answer}\n"
