"""Bad values of every option: refused in a line before anything runs, or taken; never a bare error."""

from pathlib import Path

import pytest

from membench.cli.command_line import check_arguments
from membench.cli.main import main
from membench.core.errors import MembenchError

VALUES = ["-1", "0", "99999999999999999999", "1e400", "nan", "inf", "''", "'ünï'", "[]", "{}"]
EFFICIENCY = "membench.core.hardware.efficiency.Efficiency\n  arithmetic: 0.5\n  memory: 0.7"
TAKEN = {
    "batch_size": (),
    "seed": ("-1", "0"),
    "budget": ("99999999999999999999",),
    "host_memory": ("99999999999999999999",),
    "micro_batch": (),
    "exchange": (),
    "parallel": (),
    "precision": (),
    "channels_last": (),
    "holds_output": (),
    "kernels": (),
    "allocator": ("''",),
    "context": ("99999999999999999999",),
    "also": ("99999999999999999999",),
    "timeout_s": ("99999999999999999999", "1e400", "inf"),
    "time_limit_s": ("99999999999999999999", "1e400", "inf"),
    "metrics": (),
    "records": ("'ünï'",),
    "rerun": (),
    "strict": (),
    "dry_run": (),
    "device.memory_bytes": ("99999999999999999999", "1e400", "inf"),
    "strategy.fixed_region": (),
    "model.name": ("'ünï'",),
    "tracking.mode": (),
}
"""By option, those values that are in order."""


@pytest.mark.parametrize("name", TAKEN)
def test_a_bad_value_of_any_option_is_refused_in_a_line(name: str) -> None:
    for value in VALUES:
        if value not in TAKEN[name]:
            with pytest.raises(MembenchError) as caught:
                check_arguments(["model=lenet", f"{name}={value}"])
            assert "\n" not in str(caught.value), (name, value)
        else:
            check_arguments(["model=lenet", f"{name}={value}"])


@pytest.mark.parametrize(
    "words",
    [
        ["run", "batch_size=99999999999999999999"],
        ["run", "model=lenet", "batch_size=999999999999999999"],
        ["run", "strategy._target_=os.getcwd"],
        ["run", "model=lenet", "optimizer=adamw", "optimizer.optimizer=os.getcwd"],
        ["run", "metrics=os.getcwd"],
        ["predict", "device=t4", "model._target_=os.getcwd", "model.input_shape=[3]", "model.loss=null"],
        ["predict", "device=t4", "model=lenet", "accumulate=0"],
        ["timeline", "device.power._target_=os.getcwd"],
        ["frontier", "model=lenet", "device=t4", "device._target_=os.getcwd"],
        ["advise", "device=t4", "model=lenet", "batch_size=nan"],
        ["train", "model=digits_cnn", "strategy._target_=os.getcwd"],
    ],
)
def test_bad_input_ends_a_command_with_2_before_anything_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("command", ["run", "predict", "timeline"])
@pytest.mark.parametrize("group", ["strategy", "device", "cluster", "framework", "optimizer", "machine"])
def test_a_file_of_ones_own_is_not_called_before_its_class_is_known(
    command: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "mine" / group).mkdir(parents=True)
    names = {
        "device": "name: evil\nmemory_bytes: 1\n",
        "framework": f"efficiency:\n  _target_: {EFFICIENCY}\n",
        "machine": "name: evil\n",
    }
    (folder / "evil.yaml").write_text(f"_target_: os.mkdir\npath: {tmp_path / 'made'}\n{names.get(group, '')}")
    monkeypatch.chdir(tmp_path)
    device = [] if group == "device" else ["device=t4"]
    words = [command, "model=lenet", f"{group}=evil", *device, "--config-dir", str(tmp_path / "mine")]
    if command == "predict" and group in ("framework", "cluster"):
        pytest.skip("predict takes no framework, and clusters of conf/ alone")
    assert main(words) == 2
    assert "os.mkdir is not known to make" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_name_in_unicode_is_refused_with_the_quotes_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "records=ünï"]) == 2
    assert """is quoted twice: 'records="ünï"'""" in capsys.readouterr().err
    check_arguments(["model=lenet", 'records="ünï"'])
