"""A wrong word on the command line is a one-line error that lists the valid ones."""

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from membench.cli import command_line, measure, run, timeline
from membench.cli.command_line import check_arguments, compose_checked, explain
from membench.cli.commands import command_help
from membench.cli.main import main
from membench.core import configuration
from membench.core.document import as_text
from membench.core.errors import MembenchError
from membench.lab.cli import train
from membench.sweep.composition import hydra_composition

FRAMEWORKS = {
    "k40m": "caffe",
    "titan_z": "caffe",
    "k40_vdnn": "torch7",
    "k40_modnn": "modnn",
    "k40c": "pytorch_epmc",
    "gtx1070": "pytorch_epmc",
    "gtx1080_ti": "pytorch_epmc",
}
"""Each paper's devices, and the framework in which it runs on them; mmCNN's is PyTorch, as of other devices."""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["model=lenet", "batch_size=4"],
        ["-m", "model=lenet,alexnet", "batch_size=1,2"],
        ["strategy=layrub_hybrid", "strategy.fixed_region=true"],
        ["budget=200 MB"],
        ["-m", "strategy=glob([layrub*,vdnn*],exclude=*inference)", "batch_size=range(1,3)"],
        ["strategy=epmc", "strategy.density=measured"],
    ],
)
def test_accepts(arguments: list[str]) -> None:
    check_arguments(arguments)


@pytest.mark.parametrize("device", [*FRAMEWORKS, "titan_x_maxwell", "k80", "rtx4090", "mi300x"])
def test_a_papers_device_runs_under_its_framework_and_any_other_under_pytorch(device: str) -> None:
    with hydra_composition():
        composed = compose_checked("run", [f"device={device}"])
    assert composed["framework"] == configuration.read("framework", FRAMEWORKS.get(device, "pytorch"))
    assert composed["device"] == configuration.read("device", device)  # as a paper's cells have it


def test_no_other_device_names_a_framework() -> None:
    files = [configuration.CONF_DIRECTORY / "device" / f"{name}.yaml" for name in configuration.names("device")]
    naming = {path.stem for path in files if "defaults" in configuration.read_options(path)}
    assert naming == FRAMEWORKS.keys()


@pytest.mark.parametrize("words", [["device=k40_vdnn", "framework=mxnet"], ["framework=mxnet", "device=rtx4090"]])
def test_a_framework_that_is_named_counts(words: list[str]) -> None:
    with hydra_composition():
        assert compose_checked("run", words)["framework"] == configuration.read("framework", "mxnet")


@pytest.mark.parametrize(("first", "framework"), [("", "pytorch"), ("caffe", "caffe")])
def test_a_device_of_ones_own_may_name_its_framework(first: str, framework: str, tmp_path: Path) -> None:
    named = f"defaults:\n  - override /framework@_global_.framework: {first}\n" if first else ""
    text = (configuration.CONF_DIRECTORY / "device" / "rtx4090.yaml").read_text()
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "mine.yaml").write_text(named + text)
    with hydra_composition(tmp_path):
        composed = compose_checked("run", ["device=mine"])
    assert composed["framework"] == configuration.read("framework", framework)
    assert composed["device"] == configuration.read("device", "mine", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("least_bytes: 3\n", "strategy: its file in conf/strategy has no _target_"),
        ("", "strategy: its file in conf/strategy has no _target_"),
        ("_target_: mine.Mine\n least_bytes: 3\n", r"mapping values are not allowed here in .*/mine.yaml\", line 2"),
    ],
)
def test_a_half_written_file_is_refused_in_one_line_where_it_is_chosen(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = shutil.copytree(configuration.CONF_DIRECTORY, tmp_path / "conf")
    (conf / "strategy" / "mine.yaml").write_text(text)
    monkeypatch.setattr(configuration, "CONF_DIRECTORY", conf)
    with pytest.raises(MembenchError, match=expected) as refused:
        check_arguments(["strategy=mine"])
    assert "\n" not in str(refused.value)
    check_arguments(["strategy=eager"])
    configuration._method_names.cache_clear()
    assert configuration.method_of({"strategy": configuration.read("strategy", "eager")}) == "eager"


def test_a_model_without_what_its_batch_is_made_of_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = shutil.copytree(configuration.CONF_DIRECTORY, tmp_path / "conf")
    (conf / "model" / "mine.yaml").write_text("name: mine\nbatch_size: 2\ninput_shape: [3]\n")
    monkeypatch.setattr(configuration, "CONF_DIRECTORY", conf)
    with pytest.raises(MembenchError, match="model: its file in conf/model has no module, loss$"):
        check_arguments(["model=mine"])


def test_an_error_is_explained_without_its_cause() -> None:
    error = MembenchError("no such luck")
    error.__cause__ = ValueError("luck")
    assert explain(error, "run") == "no such luck"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=resnet51"], r"model 'resnet51' is not known.* are: alexnet, .*resnet50"),
        (["model=resnet5O"], r"model 'resnet5O' is not known; did you mean 'resnet50'\? There are: alexnet"),
        (["strategy=layrub_intr"], r"did you mean 'layrub_inter' or 'layrub_intra'\? There"),
        (["device=k40"], r"did you mean 'k40c' or 'k40m' or 'k40_modnn'\? There"),
        (["stratgy=eager"], r"option 'stratgy' is not known; did you mean 'strategy'"),
        (["batchsize=3"], r"option 'batchsize' is not known; did you mean 'batch_size'"),
        (
            ["strategy.budgt=3"],
            r"option 'strategy.budgt' is not known; did you mean 'budget'.* There are: fixed_region, only_needed",
        ),
        (["strategy.fixed_regoin=true"], r"did you mean 'fixed_region'\? There are: fixed_region, only_needed$"),
        (["strategy.density=.5"], "is not known; epmc, serial_csr have it; there are: fixed_region, only_needed$"),
        (["rerun=al"], r"rerun 'al' is not known; did you mean 'all'\? There are: missing, failed, all$"),
        (["hydra.verbose=lots"], "hydra.verbose is true or false, not 'lots'$"),
        (["budget=0.5"], "budget: 0.5 is not a whole number of bytes; add the unit that you mean"),
        (["model.module._target_=nosuch.Net"], "model: nosuch.Net cannot be imported .No module named 'nosuch'"),
        (["strategy=magic"], r"strategy 'magic' is not known.* are: .*eager, .*layrub_hybrid"),
        (["device=tpu"], r"device 'tpu' is not known.* are: .*k40_modnn, k40_vdnn"),
        (["backend=tpu"], r"backend 'tpu' is not known.* are: cpu, cuda, simulated"),
        (["-m", "model=lenet,resnet51"], "model 'resnet51' is not known"),
        (["-m", "strategy=glob(x*)"], r"'strategy=glob\(x\*\)' chooses nothing"),
        (["-m", "batch_size=range(3,1)"], r"'batch_size=range\(3,1\)' chooses nothing"),
        (["speed=3"], "option 'speed' is not known.* are: framework, .*model, .*batch_size, seed, budget"),
        (["strategy.speed=3"], "option 'strategy.speed' is not known.* are: "),
        (["group/model=3"], "option 'group/model' is not known.* are: framework, .*model"),
        (["+speed=3"], r"'\+speed=3' is not a choice; write option=value"),
        (["model"], "'model' is not a choice; write option=value"),
        (
            ["model=lenet batch_size=3"],
            "'model=lenet batch_size=3' is not a choice; write option=value; a value with spaces",
        ),
        (["batch_size=0"], "batch_size is a positive whole number, not 0"),
        (["batch_size=many"], "batch_size is a positive whole number, not 'many'"),
        (["-m", "batch_size=1,-1"], "batch_size is a positive whole number, not -1"),
        (["seed=1.5"], "seed is a whole number of at most 64 bits, not 1.5"),
        (["budget=small"], "budget: 'small' is not a size"),
        (["cluster=cloud"], "cluster 'cloud' is not known.* are: a10x4, a6000x8, .*, one, rtx4090x8"),
        (["exchange=never"], "exchange 'never' is not known.* are: as_made, at_end"),
        (["timeout_s=0"], "timeout_s is a positive number, not 0"),
        (["hydra.job.num=many"], "num=many; Value 'many' .* Integer"),
        (["model=3"], "model 3 is not known.* are: alexnet"),
        (["device=null"], "device None is not known.* are: .*k40m"),
        (["model=lenet,alexnet"], "'model=lenet,alexnet' is a choice of several; add -m to run each"),
        (["seed=99999999999999999999"], "seed is a whole number of at most 64 bits, not 9{20}"),
        (["records=null"], "records is a folder, such as outputs/records, not None"),
        (["device.memory_bytes_per_s=0"], "device: memory_bytes_per_s is a positive number, not 0"),
        (["device.full_duplex=maybe"], "full_duplex is true or false, not 'maybe'"),
        (["strategy.fixed_region=maybe"], "strategy.fixed_region is true or false, not 'maybe'"),
        (
            ["strategy=vdnn_all", "strategy.algorithms=fast"],
            "strategy: algorithms 'fast' is not known.* are: memory, performance",
        ),
        (["strategy=epmc", "strategy.density=2"], "strategy: a density is a number from 0 to 1, not 2"),
        (["model=resnet50", "model.module.depth=51"], "model cannot be built .*: no ImageNet ResNet of depth 51"),
        (["metrics=nothing.at_all"], "'nothing.at_all' is not a function of any module"),
        (["model.name='a\tb'"], "model.name is a name of printable characters, not 'a.tb'"),
        (["model.name=[a]"], "model.name is a name of printable characters, not"),
        (["device.name=''"], "device.name is a name of printable characters, not ''"),
        (["backend.name=../../x"], "backend.name '../../x' is not known.* are: cpu, cuda, simulated, xpu"),
        (["model=../x"], "'x' is not known"),
        (["strategy=$(touch x)"], "'strategy=.* is not a choice"),
        (["budget=${nothing}"], "Interpolation key 'nothing' not found$"),
    ],
)
def test_refuses_in_one_line(arguments: list[str], expected: str) -> None:
    with pytest.raises(MembenchError, match=expected) as refused:
        check_arguments(arguments)
    assert "\n" not in str(refused.value)
    assert "http" not in str(refused.value)


# ---- files of the user's own ------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder for ``--config-dir``, with a model and a strategy, and a model without a batch size."""
    for group, name, copy in (("model", "lenet", "mine"), ("strategy", "eager", "mine")):
        (tmp_path / group).mkdir()
        shutil.copy(configuration.CONF_DIRECTORY / group / f"{name}.yaml", tmp_path / group / f"{copy}.yaml")
    text = (tmp_path / "model" / "mine.yaml").read_text()
    (tmp_path / "model" / "unsized.yaml").write_text(
        "\n".join(line for line in text.splitlines() if not line.startswith("batch_size"))
    )
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [["model=mine"], ["strategy=mine"], ["-m", "model=glob(min*)"], ["model=unsized", "batch_size=2"]]
)
def test_files_of_a_further_folder_are_choices(arguments: list[str], own: Path) -> None:
    check_arguments(arguments, own)
    with pytest.raises(MembenchError):
        check_arguments(arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=mien"], "model 'mien' is not known; did you mean 'mine'. There are: .*, mine, "),
        (["model=unsized"], "^model: its file in conf/model has no batch_size; add it there, or give batch_size=...$"),
    ],
)
def test_a_wrong_choice_among_them_is_one_line(arguments: list[str], expected: str, own: Path) -> None:
    with pytest.raises(MembenchError, match=expected):
        check_arguments(arguments, own)


@pytest.mark.parametrize("command", ["run", "train", "timeline", "measure", "calibrate", "fit"])
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--config-dir"], "--config-dir: a folder has to follow it; write --config-dir FOLDER"),
        (["--config-dir", "nowhere"], "--config-dir: 'nowhere' is not a folder; write --config-dir FOLDER"),
        (["--bogus"], "option '--bogus' is not known; there are: --config-dir, "),
        (["--confg-dir", "."], "option '--confg-dir' is not known; did you mean '--config-dir'"),
    ],
)
def test_every_command_that_takes_a_folder_refuses_other_flags_in_one_line(
    command: str, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *words]) == 2
    answered = capsys.readouterr().err
    assert answered.count("\n") == 1
    start, _, end = answer.partition(".*")
    assert answered.startswith(f"membench {command}: {start}")
    assert end in answered
    assert "--config-dir FOLDER" in as_text(command_help(command))


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_other_commands_refuse_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--config-dir", "."]) == 2
    expected = f"membench {command}: option '--config-dir' is not known; there are: --help, --version\n"
    assert capsys.readouterr().err == expected


def test_trainings_measurements_and_pictures_take_it_too(own: Path) -> None:
    folder = ["--config-dir", str(own)]
    assert train.parse([*folder, "strategy=mine"]).trainings[0].runs[0]["strategy"] == configuration.read(
        "strategy", "eager"
    )
    assert measure.parse([f"--config-dir={own}", "models=mine", "strategies=mine"]).models == ("mine",)
    cell = measure.cell_of(measure.parse([*folder, "backend=cpu"]), "mine", 2, "mine")
    assert cell["model"] == configuration.read("model", "lenet")
    assert timeline.parse(["model=mine", *folder])["model"] == configuration.read("model", "lenet")


# ---- a GPU -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "is_asked"),
    [
        (["backend=cuda"], True),
        (["-m", "backend=cpu,cuda"], True),
        (["backend=cpu"], False),
        (["backend=cuda", "dry_run=true"], False),
        (["backend=cuda", "hydra/launcher=cluster"], False),  # which has GPUs that are not here
    ],
)
def test_a_missing_gpu_is_found_before_anything_runs(
    arguments: list[str], is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(backend: str) -> None:
        raise MembenchError(f"backend {backend!r} needs a GPU")

    monkeypatch.setattr(command_line, "visible_gpus", list)
    monkeypatch.setattr(command_line, "device_facts_from_outside", refuse)
    if is_asked:
        with pytest.raises(MembenchError, match="backend 'cuda' needs a GPU"):
            check_arguments(arguments)
    else:
        check_arguments(arguments)


# ---- words that people have -------------------------------------------------------------------------

OF_A_STEP = {
    "predict": ["predict"],
    "advise": ["advise"],
    "timeline": ["timeline", "framework=pytorch"],
    "frontier": ["frontier", "strategies=joint"],
}
"""Commands that take one step, and a word that each needs besides the others'."""
PLAIN = ["model=resnet50", "device=a100_80gb_sxm", "precision=amp_bf16", "optimizer=adamw", "batch_size=4"]


@pytest.mark.parametrize("command", OF_A_STEP)
@pytest.mark.parametrize(
    "changed",
    [
        ["model=ResNet-50"],
        ["device=NVIDIA A100-SXM4-80GB"],
        ['device="NVIDIA A100-SXM4-80GB"'],
        ["device=A100-80GB-SXM"],
        ["precision=bf16-mixed"],
        ["precision=mixed_bfloat16"],
        ["optimizer=AdamW"],
        ["optimizer=torch.optim.AdamW"],
        ["optimizer=adamw_torch"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_takes_a_step_reads_words_that_people_have(command: str, changed: list[str]) -> None:
    replaced = changed[0].partition("=")[0]
    words = [word for word in PLAIN if word.partition("=")[0] != replaced]
    module = import_module(f"membench.cli.{command}")
    _, *own = OF_A_STEP[command]
    assert _without_words(module.parse([*own, *words, *changed])) == _without_words(module.parse([*own, *PLAIN]))


def _without_words(options: Any) -> Any:
    """Return options without the words of a command that logs them, whose order may be another."""
    return replace(options, words=()) if hasattr(options, "words") else options


@pytest.mark.parametrize("command", OF_A_STEP)
def test_every_command_that_takes_a_step_takes_a_class(command: str) -> None:
    _, *own = OF_A_STEP[command]
    words = ["model._target_=torchvision.models.resnet18", "model.input_shape=[3,64,64]", "model.classes=1000"]
    options = import_module(f"membench.cli.{command}").parse([*own, *words, "device=t4"])
    assert "torchvision.models.resnet18" in str(options)


def test_a_sweep_reads_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-m", "model=LeNet,AlexNet", "precision=bfloat16,32-true", "optimizer=adamw_torch_fused", "strategy=Eager"]
    assert run.parse(words) == [
        "-m",
        "model=lenet,alexnet",
        "precision=bf16,fp32",
        "optimizer=adamw",
        "optimizer.fused=true",
        "strategy=eager",
    ]
