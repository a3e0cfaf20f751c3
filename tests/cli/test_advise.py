"""`membench advise`: a table or JSON, and one-line errors."""

import json
from pathlib import Path

import pytest

from membench.cli.main import main

WORDS = [
    "model=lenet",
    "device=rtx3090",
    "batch_size=8",
    "optimizer=adamw",
    "methods=eager,layrub_hybrid",
    "processes=1",
]


def test_it_prints_whether_it_fits_a_table_and_lines_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *WORDS]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(
        "lenet, batch 8, adamw, simulated on rtx3090\n  plain PyTorch  fits in 24.0 GB\n"
    )
    assert "\n  eager " in captured.out and "strategy='eager'" in captured.out
    assert "published measurements of plain PyTorch" in captured.out
    assert not captured.err  # a bar is only drawn in a terminal


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *WORDS, "output=json", "largest=none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["largest_batch"] is None
    assert {plan["name"] for plan in found["plans"]} == {"eager", "layrub_hybrid"}
    assert len(found["code"]) == 3 and found["trust"][0]["rows"] > 0


def test_tracking_logs_the_table_the_page_and_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["advise", *WORDS, "largest=none", "tracking=offline"]) == 0
    assert capsys.readouterr().out.startswith("lenet, batch 8")
    (run,) = Path("outputs/wandb").glob("offline-run-*")
    (table,) = [json.loads(path.read_text()) for path in run.rglob("*.table.json")]
    names = [row[table["columns"].index("name")] for row in table["data"]]
    assert sorted(names) == ["eager", "layrub_hybrid"]
    files = Path("outputs/advice/lenet_rtx3090")
    assert sorted(path.name for path in files.iterdir()) == [
        "advice.html", "advice.json", "frontier.png", "memory.png",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["model=lenet"], "name the device"),
        (["model=lenet", "device=rtx3090", "strategy=dtr"], "strategy is not an option of advise"),
        (["model=lenet", "device=rtx309O"], "device 'rtx309O' is not known"),
        (["model=lenet", "device=t4", "methods=dtx"], "methods"),
        (["model=lenet", "device=t4", "output=xml"], "output"),
        (["-m", "model=lenet", "device=t4"], "-m is not an option"),
        (["model._target_=nothing.Net", "device=t4"], "Net has no description of its batch"),
    ],
)
def test_wrong_words_are_refused_in_a_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_a_budget_below_the_lower_bound_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *WORDS, "budget=10KB"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("membench advise: 10.0 KB are too little: no schedule")
    )
