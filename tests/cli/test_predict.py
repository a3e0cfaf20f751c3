"""`membench predict`: a block of text, and one-line errors."""

import pytest

from membench.cli.main import main
from membench.cli.words import read_sizes
from membench.core.errors import MembenchError


def test_it_prints_three_sizes_and_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=lenet", "device=rtx4090", "batch_size=4", "optimizer=adamw", "precision=amp_bf16"]
    assert main(["predict", *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lenet, batch 4, amp_bf16, adamw, predicted for rtx4090\n")
    names = [line.split("  ")[1].strip() for line in out.splitlines()[1:]]
    names_of = ["fits", "allocated", "made up of", "reserved", "used", "step time", "waits", "throughput", "assumed"]
    assert names == names_of
    assert "optimizer state" in out


def test_operators_are_listed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=lenet", "device=rtx4090", "batch_size=4", "optimizer=adamw"]
    assert main(["predict", *words]) == 0
    plain = capsys.readouterr().out
    assert main(["predict", *words, "breakdown=true"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(plain)
    head, *lines = out.removeprefix(plain).strip().splitlines()
    assert head.split() == ["operator", "calls", "time", "share", "TFLOP", "TFLOPS", "GB", "GB/s"]
    assert {line.split()[0] for line in lines} >= {"convolution", "convolution_backward", "update"}


def test_the_program_and_the_process_are_stated_as_assumed_or_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "model=lenet", "device=rtx3060", "batch_size=4", "optimizer=sgd"]
    given = ["holds_output=true", "optimizer.gradients=kept", "context=1605MB", "also=9.5GB"]
    said = []
    for more in ([], given):
        assert main([*words, *more]) == 0
        said.append(dict(line[2:].split("  ", 1) for line in capsys.readouterr().out.splitlines()[1:]))
    assumed, stated = (each["assumed"].strip().split("; ") for each in said)
    assert assumed == [
        "output freed after the loss (holds_output)",
        "gradients freed (optimizer.gradients)",
        "273.8 MB outside of the allocator (context)",
        "nothing besides the step (also)",
    ]
    assert stated == [
        "output held after the loss (holds_output)",
        "gradients zeroed in place (optimizer.gradients)",
        "1.6 GB outside of the allocator (context)",
        "9.5 GB besides the step (also)",
    ]
    assert [each["fits"].strip()[:3] for each in said] == ["yes", "yes"]
    assert main([*words, "also=11.6GB"]) == 0
    assert "fits                 no" in capsys.readouterr().out


def test_a_real_step_has_no_program_that_holds_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model=lenet", "backend=cpu", "strategy=eager", "holds_output=true"]) == 2
    assert "choose strategy=pytorch and backend=simulated" in capsys.readouterr().err


@pytest.mark.slow
def test_options_of_an_optimizer_are_those_of_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=lenet", "device=rtx4090", "batch_size=1", "optimizer=adamw", "optimizer.weight_decay=0.1"]
    assert main(["predict", *words]) == 0
    assert "of workspace" in capsys.readouterr().out
    assert main(["predict", *words, "optimizer.fused=true"]) == 0
    assert "of workspace" not in capsys.readouterr().out
    assert main(["predict", *words, "optimizer.in_backward=true", "optimizer.ema=true"]) == 0


@pytest.mark.slow
def test_settings_of_the_allocator_are_in_the_numbers_and_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=resnet18", "device=rtx4090", "batch_size=512"]
    assert main(["predict", *words]) == 0
    by_default = capsys.readouterr().out.splitlines()
    assert main(["predict", *words, "allocator=expandable_segments:True"]) == 0
    chosen = capsys.readouterr().out.splitlines()
    assert chosen[0] == by_default[0] + ", expandable_segments:True"
    differing = [line.split()[0] for line, other in zip(chosen, by_default, strict=True) if line != other]
    assert differing[1:] == ["reserved", "used"]


def test_the_machine_is_one_of_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=lenet", "device=rtx4090", "batch_size=4", "optimizer=adamw", "strategy=zero_infinity"]
    assert main(["predict", *words]) == 0
    by_default = capsys.readouterr().out.splitlines()
    assert main(["predict", *words, "machine=desktop"]) == 0
    chosen = capsys.readouterr().out.splitlines()
    assert chosen[0] == "lenet, batch 4, adamw, predicted for rtx4090 in machine desktop"
    differing = [line.split()[0] for line, other in zip(chosen, by_default, strict=True) if line != other]
    assert differing == ["lenet,", "step", "waits", "throughput"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["model=lenet"], "name the device"),
        (["model=lenet", "device=rtx4090", "backend=cpu"], "backend is not an option of predict"),
        (["model=lenet", "device=rtx4090", "dry_run=true"], "dry_run is not an option of predict"),
        (["model=lenet", "device=rtx409O"], "device 'rtx409O' is not known"),
        (["model=lenet", "device=t4", "optimizer=adamx"], "did you mean 'adam'? There are: adafactor, adagrad, adam"),
        (["model=lenet", "device=t4", "optimizer=adamw", "optimizer.fused=maybe"], "fused is true or false"),
        (["model=lenet", "device=t4", "optimizer=adamw", "optimizer.lr=-1"], "learning rate: -1"),
        (["model=lenet", "device=t4", "machine=laptop"], "machine 'laptop' is not known; there are: desktop"),
        (
            ["model=lenet", "device=t4", "machine=desktop", "machine.memory_bytes=-1"],
            "machine: memory_bytes is a positive whole number, not -1",
        ),
        (["-m", "model=lenet", "device=t4"], "-m is not an option"),
    ],
)
def test_wrong_words_are_refused_in_a_line(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out


LLAMA = [
    "model=hf/llama", "device=a100_80gb", "precision=bf16", "batch_size=4", "model.sequence_length=64",
    "model.module.num_hidden_layers=2", "model.module.hidden_size=64", "model.module.num_attention_heads=4",
    "model.module.num_key_value_heads=4", "model.module.intermediate_size=64",
]  # fmt: skip


CLUSTER = [
    "cluster=dgx_a100_80gb",
    "parallel={dp: 2, fsdp: 8}",
    "nodes=2",
    "accumulate=2",
    "reduce_dtype=fp32",
    "optimizer=adamw",
]


def test_a_step_on_several_gpus_is_that_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    one_gpu = [word for word in LLAMA if not word.startswith("device")]
    assert main(["predict", *one_gpu, *CLUSTER]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "llama, batch 8, bf16, adamw, predicted for a100_80gb_sxm"
    values = {line[2:22].strip(): line[23:] for line in lines}
    assert values["GPUs"] == "16, dp 2, fsdp 8; memory and time are those of each of them"
    assert "gathered weights" in values["made up of"] and "tokens/s" in values["throughput"]
    assert values["communication"].endswith("of a step not hidden behind computation")
    assert values["utilization"].endswith("(MFU)")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["device=t4", "nodes=2"], "name the cluster as well"),
        (["cluster=dgx"], "cluster 'dgx' is not known; did you mean 'dgx_a100_40gb' or "),
        (["cluster=dgx_h100", "parallel={fsdp: 4}"], "8"),
        (["cluster=dgx_h100", "parallel={xp: 8}"], "no axis xp"),
        (["cluster=dgx_h100", "parallel={ep: 8}"], "no module with an attribute num_experts"),
        (["cluster=dgx_h100", "parallel=8"], "numbers of GPUs by axis"),
        (["cluster=dgx_h100", "nodes=0"], "nodes"),
        (["cluster=one"], "name the device"),
    ],
)
def test_ranks_that_cannot_be_are_refused_in_a_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "model=vit_b_16", *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize(("phase", "tokens"), [("decode", 4), ("prefill", 4 * 64)])
def test_a_served_network_has_tokens_per_second_and_a_cache(
    phase: str, tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *LLAMA, f"serving={phase}", "serving.cache=static"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"llama, {phase} at 64 tokens, static cache, batch 4, bf16, predicted for a100_80gb"
    values = {line[2:22].strip(): line[23:] for line in lines}
    assert values["cache"] == "128.0 KB, 32.0 KB for each sequence"  # 2 * 2 layers * 64 tokens * 64 numbers * 2 bytes
    assert values["throughput"].endswith(" tokens/s") and tokens


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["model=lenet", "serving=decode"], "serving: lenet has no input_ids"),
        ([*LLAMA, "serving=decode", "optimizer=adamw"], "a network that serves does not train"),
        ([*LLAMA[:2], *LLAMA[3:], "serving=decode", "precision=amp_bf16"], "write precision=bf16"),
        ([*LLAMA, "serving=decode", "serving.cache=paged"], "'paged' is not known; there are: dynamic, static"),
        ([*LLAMA, "serving=generate"], "serving 'generate' is not known; there are: decode, prefill"),
    ],
)
def test_a_step_that_cannot_be_served_is_refused_in_a_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *([] if "device=a100_80gb" in words else ["device=t4"]), *words]) == 2
    captured = capsys.readouterr()
    assert answer in captured.err and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize("cluster", [[], ["cluster=one"]])
def test_micro_batches_on_one_card_need_no_cluster(cluster: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=lenet", "device=t4", "batch_size=8", "accumulate=4", *cluster]) == 0
    said = capsys.readouterr().out
    assert said.startswith("lenet, batch 32, ")
    for of_several in ("GPUs", "communication", "pipeline", "samples of all", "utilization"):
        assert of_several not in said


@pytest.mark.parametrize("spelling", ["{fsdp:8}", "{fsdp: 8}", "{ fsdp : 8 }", "{dp:2,fsdp:4}", "{dp: 2,fsdp:4}"])
def test_axes_are_read_with_and_without_spaces(spelling: str) -> None:
    assert read_sizes("parallel", spelling) in ({"fsdp": 8}, {"dp": 2, "fsdp": 4})


@pytest.mark.parametrize(
    "spelling", ["{fsdp=8}", "{fsdp:}", "{fsdp:-1}", "{8:8}", "[8]", "{", "fsdp", "{fsdp:nan}", ""]
)
def test_other_spellings_of_axes_are_refused(spelling: str) -> None:
    with pytest.raises(MembenchError, match="parallel is numbers of GPUs by axis"):
        read_sizes("parallel", spelling)


def test_a_network_of_ones_own_is_predicted_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "model._target_=torchvision.models.squeezenet1_1", "device=t4", "batch_size=2"]
    assert main([*words, "model.input_shape=[3,64,64]", "model.classes=1000"]) == 0
    assert capsys.readouterr().out.startswith("squeezenet1_1, batch 2, ")


def test_host_memory_is_printed_where_the_step_uses_some(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "model=lenet", "device=t4", "batch_size=8", "optimizer=adamw"]
    assert main([*words, "strategy=zero_offload"]) == 0
    assert "\n  host memory          6.6 MB (" in capsys.readouterr().out
    assert main(words) == 0
    assert "host memory" not in capsys.readouterr().out


@pytest.mark.slow
def test_fine_tuning_is_of_networks_with_a_file_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "model=t5_small", "device=t4", "batch_size=2", "model.sequence_length=64"]
    found = []
    for more in ([], ["model.checkpointing=true"]):
        assert main([*words, *more]) == 0
        said = capsys.readouterr().out
        found.append(next(line for line in said.splitlines() if "allocated" in line))
    assert found[0] != found[1]
    assert main(["predict", "model=lenet", "device=t4", "model.checkpointing=true"]) == 2
    assert "has neither gradient_checkpointing_enable()" in capsys.readouterr().err
