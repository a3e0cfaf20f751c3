"""`membench timeline`: files from simulated and measured runs, and one-line errors."""

import json
from pathlib import Path

import pytest

from membench.cli.main import main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "lenet_batch_4_layrub_hybrid_simulated_on_k40m_under_caffe"),
        (["backend=cpu", "strategy=eager"], "lenet_batch_4_eager_measured_on_this_machine_s_cpu"),
        (["batch_size=100000"], "lenet_batch_100000_layrub_hybrid_simulated_on_k40m_under_caffe"),  # does not fit
    ],
)
def test_writes_a_picture_and_a_trace(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", "model=lenet", "batch_size=4", *words]) == 0
    expected = [f"outputs/timelines/{name}{ending}" for ending in (".png", ".pdf", ".trace.json", ".snapshot.pickle")]
    assert capsys.readouterr().out.split() == expected
    assert all((tmp_path / path).exists() for path in expected)
    assert json.loads((tmp_path / expected[2]).read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["model=lenot"], "model 'lenot' is not known; did you mean 'lenet'"),
        (["strategy=eager", "batch_size=0"], "batch_size is a positive whole number"),
        (["-m", "model=lenet"], "-m is not an option; a picture shows one step"),
        (["model=lenet", "tracking=offline"], "tracking is not an option of timeline"),
        (["model=lenet,alexnet"], "'model=lenet,alexnet' is a choice of several"),
        (["model=lenet", "budget=1KB"], "a budget of 1.0 KB is too small"),
    ],
)
def test_a_wrong_word_is_one_line(
    words: list[str], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"membench timeline: {answer}")
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
