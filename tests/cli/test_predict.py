"""`membench predict`: a block of text, and one-line errors."""

import pytest

from membench.cli.main import main


def test_it_prints_three_sizes_and_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=lenet", "device=rtx4090", "batch_size=4", "optimizer=adamw", "precision=amp_bf16"]
    assert main(["predict", *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lenet, batch 4, amp_bf16, adamw, predicted for rtx4090\n")
    names = [line.split("  ")[1].strip() for line in out.splitlines()[1:]]
    assert names == ["fits", "allocated", "made up of", "reserved", "used", "step time", "throughput"]
    assert "optimizer state" in out


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["model=lenet"], "name the device"),
        (["model=lenet", "device=rtx4090", "backend=cpu"], "backend is not an option of predict"),
        (["model=lenet", "device=rtx409O"], "device 'rtx409O' is not known"),
        (["-m", "model=lenet", "device=t4"], "-m is not an option"),
    ],
)
def test_wrong_words_are_refused_in_a_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out
