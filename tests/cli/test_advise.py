"""`membench advise`: a table or JSON, and one-line errors."""

import json
from pathlib import Path

import pytest

from membench.cli.main import main

pytestmark = pytest.mark.usefixtures("kept_planners")
WORDS = [
    "model=lenet",
    "device=rtx3090",
    "batch_size=8",
    "optimizer=adamw",
    "methods=eager,layrub_hybrid",
    "processes=1",
]


@pytest.mark.slow
def test_it_prints_whether_it_fits_a_table_and_lines_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *WORDS]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("lenet, batch 8, adamw, simulated on rtx3090\n  plain PyTorch  fits in 23.6 GB\n")
    assert captured.out.splitlines()[-1].startswith("Assumed: output freed after the loss (holds_output); ")
    assert "\n  eager " in captured.out and "strategy='eager'" in captured.out
    assert "90% of published steps of this kind (training on one GPU" in captured.out
    assert not captured.err  # a bar is only drawn in a terminal


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *WORDS, "output=json", "largest=none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["largest_batch"] is None
    assert {plan["name"] for plan in found["plans"]} == {"eager", "layrub_hybrid"}
    assert len(found["code"]) == 3 and "training on one GPU" in found["trust"][0]


@pytest.mark.slow
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
        (["model=lenet", "cluster=dgx_h100", "nodes=0"], "nodes is a positive whole number"),
        (["model=lenet", "cluster=dgx_h100", "device=t4"], "the GPUs of cluster dgx_h100 are h100"),
        (["model=lenet", "cluster=dgx_h100", "methods=joint"], "methods is not an option of advise on several GPUs"),
        (["model=lenet", "cluster=dgx_h100", "strict=true"], "strict is not an option of advise"),
        (["model=lenet", "cluster=dgx_h10"], "cluster"),
        (["model=lenet", "cluster=one"], "cluster one may have any device"),
        (["model=lenet", "cluster=dgx_h100", "parallel={fsdp: 3}"], "fsdp 3 is for 3 devices"),
        (["model=lenet", "cluster=dgx_h100", "checkpointing=some"], "'some' is not known; there are: none, selective"),
    ],
)
def test_wrong_words_are_refused_in_a_line(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.slow
def test_a_step_that_cannot_fit_is_answered_with_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *WORDS, "budget=10KB"]) == 2
    captured = capsys.readouterr()
    assert "No method fits.\n  need at least" in captured.out and not captured.err
    assert "What would make it fit under plain PyTorch:" in captured.out
    assert "optimizer.fused=true" in captured.out and "precision=bf16" in captured.out
    assert main(["advise", *WORDS, "budget=10KB", "levers=false"]) == 2
    assert "What would" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_lever_of_the_module_is_what_its_options_make(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "advise",
        "model=hf/llama-2-7b-hf",
        "model.module={num_hidden_layers: 2, hidden_size: 64, intermediate_size: 128, num_attention_heads: 2, "
        "num_key_value_heads: 2, vocab_size: 512}",
        "model.vocabulary=512",
        "model.sequence_length=64",
        "device=rtx3090",
        "optimizer=adamw",
        "methods=pytorch",
        "largest=none",
        "output=json",
        "processes=1",
    ]
    assert main([*words, "budget=1MB"]) == 2
    levers = json.loads(capsys.readouterr().out)["levers"]
    by_name = {lever["names"][0]: lever for lever in levers if len(lever["names"]) == 1}
    assert {"checkpointing", "LoRA", "states in 8 bits", "weights in bf16"} <= by_name.keys()
    assert main([*words, *by_name["LoRA"]["options"]]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert by_name["LoRA"]["peak_bytes"] == changed["allocated_bytes"]
    assert by_name["LoRA"]["step_time_s"] == changed["step_time_s"]


@pytest.mark.slow
def test_on_several_gpus_the_rows_and_the_code_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = (
        "num_hidden_layers: 2, hidden_size: 64, intermediate_size: 128, num_attention_heads: 2, num_key_value_heads: 2"
    )
    words = [
        "model=hf/llama-2-7b-hf",
        f"model.module={{{sizes}, vocab_size: 512}}",
        "model.vocabulary=512",
        "model.sequence_length=64",
        "cluster=dgx_h100",
        "parallel={fsdp: 8}",
        "checkpointing=none,full",
        "batch_size=1",
        "allocator=expandable_segments:True",
        "processes=1",
    ]
    assert main(["advise", *words]) == 0
    captured = capsys.readouterr()
    first, *others = captured.out.splitlines()
    assert first == ("llama_7b, bf16, adamw, simulated on 8 x h100: 1 x 8 of dgx_h100, expandable_segments:True")
    assert "# with PYTORCH_ALLOC_CONF=expandable_segments:True" in captured.out
    assert "  a step has 1 sample of 64 tokens for each GPU, in micro-batches of equal size" in others
    assert sum(line.startswith("  fsdp 8 ") for line in others) == 4
    assert "type(each).__name__ in {'LlamaDecoderLayer'}" in captured.out and not captured.err
    assert "    --parallelism.data_parallel_shard_degree 8" in others
