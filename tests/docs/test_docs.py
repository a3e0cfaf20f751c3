"""The documentation holds: its examples run, its commands are commands, its numbers are those of the files."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose
from torch import nn

import membench
from membench.backends.cpu import Chaos
from membench.capture.capture import capture
from membench.cli import timeline
from membench.cli.commands import COMMANDS, module_of
from membench.conformance.steps import check_exact
from membench.core import configuration
from membench.core.graph.schedule import Offload
from membench.core.graph.task_graph import Kind, Phase
from membench.core.hardware.device import DeviceProfile
from membench.core.record import Outcome
from membench.core.step.workload import Workload
from membench.lab.cli import report
from membench.lab.validation.dataset import FITTED, load_dataset
from membench.lab.validation.predicting import predict_rows
from membench.planning.encoding import float32_activations
from membench.steps.plan import plan
from membench.strategies.eager import Eager
from membench.sweep.cells.run import run_cell
from membench.sweep.composition import cell_configuration, hydra_composition
from tests.helpers.networks.contract import COST, reference
from tests.helpers.pages import PAGES, ROOT, Code, code_of, commands_of, mentioned_files
from tests.helpers.steps.checks import step_of

EXAMPLE = {code.file: code for page in PAGES for code in code_of(page) if code.file}
ELSEWHERE = "../my_paper"
"""A reader's own folder with a paper."""
LINES = sorted({command for page in PAGES for command in commands_of(page)})


def _write(code: Code, root: Path) -> Path:
    path = root / code.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code.text)
    return path


# ---- adding a strategy ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example_strategy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The class of the worked example, imported from the page under the name that its file would have."""
    path = _write(EXAMPLE["membench/strategies/offload_large.py"], tmp_path_factory.mktemp("example"))
    spec = spec_from_file_location("membench.strategies.offload_large", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.OffloadLarge
    del sys.modules[spec.name]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["alexnet", "resnet18", "densenet", "lstm"])
def test_the_example_strategy_is_exact_and_saves_memory(example_strategy: Any, network: str) -> None:
    case = reference(network)
    schedule = plan(case.captured.graph, example_strategy(least_bytes=1), COST, None)
    assert any(isinstance(instruction, Offload) for instruction in schedule.instructions)
    with step_of(case, schedule, Chaos(seed=3, longest_delay_s=0.0005)) as step:
        check_exact(case, step)


def test_the_example_strategy_holds_less_than_eager(example_strategy: Any) -> None:
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 1024, 10)).to("meta")
    batch = torch.randn(64, 8, 32, 32, device="meta"), torch.randint(10, (64,), device="meta")
    strategies = (Eager(), example_strategy())
    peaks = [
        membench.compile(
            module, nn.functional.cross_entropy, batch, strategy=strategy, backend="simulated", device="k40m"
        ).predicted_peak_bytes
        for strategy in strategies
    ]
    assert peaks[1] < 0.6 * peaks[0]


def test_the_example_strategy_is_short_and_its_configuration_builds_it(example_strategy: Any) -> None:
    assert len(EXAMPLE["membench/strategies/offload_large.py"].text.splitlines()) < 40
    built = configuration.instantiate(yaml.safe_load(EXAMPLE["conf/strategy/offload_large.yaml"].text))
    assert isinstance(built, example_strategy)


def test_the_example_chooses_the_inputs_of_layer_norms() -> None:
    [choice] = [code.text for code in code_of("docs/strategy.md") if "native_layer_norm" in code.text]
    module = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.LayerNorm(64))))
    inputs = torch.empty(32, 64)
    graph = capture(Workload("norms", module, nn.MSELoss(), (inputs,), (inputs,))).graph
    names: dict[str, Any] = {"graph": graph, "float32_activations": float32_activations, "least_bytes": 32 * 4}
    exec(choice, names)
    made = [task.writes[0] for task in graph.tasks if task.phase is Phase.FORWARD and task.kind is Kind.LINEAR]
    assert len(made) == 3
    assert names["chosen"] == set(made)


# ---- adding a model, a device --------------------------------------------------------------------


def test_the_example_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = (code for code in code_of("docs/model.md") if code.language == "python")
    exec(program.text, {})
    peak_bytes, images_per_s = map(float, capsys.readouterr().out.split())
    assert peak_bytes > 4096 * 64 * 32 * 32 * 4  # an activation of the convolution
    assert images_per_s > 0


def test_the_example_model_runs_as_a_cell() -> None:
    record = run_cell(_cell(model=yaml.safe_load(EXAMPLE["conf/model/squeezenet.yaml"].text)))
    assert record.outcome is Outcome.OK, record.reason


def test_the_command_for_a_class_of_ones_own_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(EXAMPLE["my_nets.py"], tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (command,) = (code.text for code in code_of("docs/own_model.md") if code.language == "bash")
    program, *words = shlex.split(command.replace("\\\n", " "))
    assert program == "membench"
    cell = timeline.parse(words[1:])
    assert cell["model"]["module"] == {"_target_": "my_nets.Reader", "width": 128}
    assert run_cell(cell).outcome is Outcome.OK


def test_the_example_device_runs_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(EXAMPLE["conf/device/example_card.yaml"], tmp_path)
    monkeypatch.setattr(configuration, "CONF_DIRECTORY", tmp_path / "conf")
    assert isinstance(configuration.load("device", "example_card"), DeviceProfile)
    device = configuration.read("device", "example_card")
    monkeypatch.undo()
    assert run_cell(_cell(device=device)).outcome is Outcome.OK


def test_the_table_of_devices_lists_files() -> None:
    rows = re.findall(r"^\| .+ \| (.+) \| `\w+` \|$", (ROOT / "docs" / "device.md").read_text(), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert len(listed) >= 26
    assert set(listed) <= set(configuration.names("device"))


def _cell(**changed: Any) -> dict[str, Any]:
    with hydra_composition():
        words = ["model=lenet", "batch_size=2", "strategy=eager", "framework=pytorch"]
        return cell_configuration(compose("config", words)) | changed


# ---- adding a data set of a program ----------------------------------------------------------------


def test_the_example_data_set_is_its_own_files_and_its_row_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [code for name, code in EXAMPLE.items() if name.startswith("experiments/validation/")]
    assert [Path(code.file).suffix for code in files] == [".csv", ".yaml", ".py"]
    table, _, program = (_write(code, tmp_path) for code in files)
    name = f"experiments.validation.programs.{program.stem}"
    spec = spec_from_file_location(name, program)
    assert spec is not None and spec.loader is not None
    monkeypatch.setitem(sys.modules, name, module := module_from_spec(spec))
    spec.loader.exec_module(module)
    (tmp_path / "experiments" / "validation" / FITTED).write_text("{}")
    dataset = load_dataset(table.parent, table.stem)
    [prediction] = predict_rows(dataset.rows)
    assert not prediction.reason
    assert prediction.values["step_time_s"] > 0 and prediction.fits


# ---- commands, files, numbers -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", LINES)
def test_commands_are_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    if command.startswith("make "):
        made = subprocess.run([*command.split(), "--dry-run"], capture_output=True, text=True, check=True)
        for words in re.findall(r"-m membench (.+)", made.stdout):
            _parse(words.split())
        return
    program, *words = shlex.split(command.removeprefix(".venv/bin/").removeprefix("python -m "))
    if program == "membench":
        settings = _parse(words)
        if isinstance(settings, report.PageOptions):
            settings = replace(settings, to=tmp_path)
        if isinstance(settings, report.Options):
            assert report.run(settings) == 0
    else:
        assert program == "pytest"


def _parse(words: list[str]) -> object:
    """Return the settings that the words of `membench` are."""
    words = [word.replace(ELSEWHERE, "experiments/mmcnn") for word in words]
    command, rest = (words[0], words[1:]) if words[0] in COMMANDS else ("run", words)
    if find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
        rest = [word for word in rest if not re.match(r"hydra(/|\.)sweeper", word)]
    return import_module(module_of(command, rest)).parse(rest)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    missing = [path for path in mentioned_files(page) if path not in EXAMPLE and not (ROOT / path).exists()]
    assert not missing


def test_changes_edit_few_files_which_have_the_names_that_the_table_states() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().split("### Which files a change edits")[1]
    rows = [line for line in section.split("\n#")[0].splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        files = re.findall(r"`(membench/[\w/]+\.py)`(?: \(([^)]*)\))?", row)
        assert len(files) <= 6, row
        for path, names in files:
            text = (ROOT / path).read_text()
            missing = [name for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", text)]
            assert not missing, f"{path} has no {missing}"


def test_residuals_are_those_of_the_calibrated_files() -> None:
    """A new fit changes the comments of its file; the same lines then go into the page."""
    told = [code.text.strip() for code in code_of("docs/simulation.md") if code.language == "text"]
    fitted = [residuals for path in _frameworks() if (residuals := _residuals(path))]
    assert sorted(told) == sorted(fitted)


def _frameworks() -> list[Path]:
    return sorted((configuration.CONF_DIRECTORY / "framework").glob("*.yaml"))


def _residuals(path: Path) -> str:
    """Return the table of residuals in a file's comments, empty where nothing was fitted."""
    comments = [line.removeprefix("# ") for line in path.read_text().splitlines() if line.startswith("# ")]
    table = [
        line for line in comments if re.match(r"\S.* paper +fitted +error|\S.* by batch size  |  \S.* [+-]\S+%$", line)
    ]
    return "\n".join(table)
