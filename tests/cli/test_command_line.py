"""A wrong word on the command line is a one-line error that lists the valid ones."""

import shutil
from pathlib import Path

import pytest

from membench.cli.command_line import check_arguments, explain
from membench.core import configuration
from membench.core.errors import MembenchError


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("least_bytes: 3\n", "strategy: its file in conf/strategy has no _target_"),
        ("", "strategy: its file in conf/strategy has no _target_"),
        (
            "_target_: mine.Mine\n least_bytes: 3\n",
            r"mapping values are not allowed here in .*/mine.yaml\", line 2",
        ),
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


def test_a_model_without_what_its_batch_is_made_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = shutil.copytree(configuration.CONF_DIRECTORY, tmp_path / "conf")
    (conf / "model" / "mine.yaml").write_text("name: mine\nbatch_size: 2\ninput_shape: [3]\nloss: null\n")
    monkeypatch.setattr(configuration, "CONF_DIRECTORY", conf)
    with pytest.raises(MembenchError, match="model: its file in conf/model has no module, classes$"):
        check_arguments(["model=mine"])


def test_an_error_is_explained_without_its_cause() -> None:
    error = MembenchError("no such luck")
    error.__cause__ = ValueError("luck")
    assert explain(error) == "no such luck"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=resnet51"], r"model 'resnet51' is not known; there are: alexnet, .*resnet50"),
        (["strategy=magic"], r"strategy 'magic' is not known; there are: .*eager, .*layrub_hybrid"),
        (["device=tpu"], r"device 'tpu' is not known; there are: .*k40_modnn, k40_vdnn"),
        (["backend=tpu"], r"backend 'tpu' is not known; there are: cpu, cuda, simulated"),
        (["-m", "model=lenet,resnet51"], "model 'resnet51' is not known"),
        (["-m", "strategy=glob(x*)"], r"'strategy=glob\(x\*\)' chooses nothing"),
        (["-m", "batch_size=range(3,1)"], r"'batch_size=range\(3,1\)' chooses nothing"),
        (["speed=3"], "'speed' is not an option; there are: model, .*batch_size, seed, budget"),
        (["strategy.speed=3"], "'strategy.speed' is not an option; there are: "),
        (["group/model=3"], "'group/model' is not an option; there are: model"),
        (["+speed=3"], r"'\+speed=3' is not a choice; write option=value"),
        (["model"], "'model' is not a choice; write option=value"),
        (
            ["model=lenet batch_size=3"],
            "'model=lenet batch_size=3' is not a choice; write option=value, and quote",
        ),
        (["batch_size=0"], "batch_size is a positive whole number, not 0"),
        (["batch_size=many"], "batch_size is a positive whole number, not 'many'"),
        (["-m", "batch_size=1,-1"], "batch_size is a positive whole number, not -1"),
        (["seed=1.5"], "seed is a whole number of at most 64 bits, not 1.5"),
        (["budget=small"], "budget: 'small' is not a size"),
        (["cluster=cloud"], "cluster 'cloud' is not known; there are: layrub_two_nodes, modnn_k40x4, one"),
        (["exchange=never"], "exchange is one of as_made, at_end, not 'never'"),
        (["timeout_s=0"], "timeout_s is a positive number, not 0"),
        (["hydra.job.num=many"], "num=many; Value 'many' .* Integer"),
        (["model=3"], "model 3 is not known; there are: alexnet"),
        (["device=null"], "device None is not known; there are: .*k40m"),
        (["model=lenet,alexnet"], "'model=lenet,alexnet' is a choice of several; add -m to run each"),
        (["seed=99999999999999999999"], "seed is a whole number of at most 64 bits, not 9{20}"),
        (["records=null"], "records is a folder, such as outputs/records, not None"),
        (["device.memory_bytes_per_s=0"], "device: memory_bytes_per_s is a positive number, not 0"),
        (["device.full_duplex=maybe"], "full_duplex is true or false, not 'maybe'"),
        (["strategy.fixed_region=maybe"], "strategy.fixed_region is true or false, not 'maybe'"),
        (
            ["strategy=vdnn_all", "strategy.algorithms=fast"],
            "strategy: algorithms is one of memory, performance, not 'fast'",
        ),
        (["strategy=epmc", "strategy.density=2"], "strategy: a density is a number from 0 to 1, not 2"),
        (
            ["model=resnet50", "model.module.depth=51"],
            "model cannot be built .*: no ImageNet ResNet of depth 51",
        ),
        (["metrics=nothing.at_all"], "'nothing.at_all' is not a function of any module"),
        (["model.name='a\tb'"], "model.name is a name of printable characters, not 'a.tb'"),
        (["model.name=[a]"], "model.name is a name of printable characters, not"),
        (["device.name=''"], "device.name is a name of printable characters, not ''"),
        (["backend.name=../../x"], "backend.name is one of cpu, cuda, simulated, not '../../x'"),
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
