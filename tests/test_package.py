"""The package as its user sees it: names and types of `membench`, the author's kit, a copy without the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import membench
from membench.core.configuration import CONF_DIRECTORY, IS_INSTALLED, ROOT
from membench.core.errors import MembenchError
from membench.lab.papers.reading.loader import known_papers
from membench.strategies import Strategy
from tests.helpers import typed_program

# ---- names and types --------------------------------------------------------------------------------


def test_every_public_name_is_there() -> None:
    assert set(membench.__all__) <= set(dir(membench))
    for name in membench.__all__:
        assert getattr(membench, name) is not None


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys, membench; membench.DeviceProfile, membench.OutOfMemory; print('torch' in sys.modules)"
    assert _run([sys.executable, "-c", program], ROOT) == "False\n"


def test_the_program_that_lint_type_checks_runs() -> None:
    assert typed_program.peak_bytes() == 64
    with pytest.raises(AttributeError, match="module 'membench' has no attribute 'missing'"):
        typed_program.missing()


# ---- the author's kit -------------------------------------------------------------------------------

METHOD = '''
from membench.strategies import Kind, Repeatable, ScheduleBuilder, Segment, Strategy, compute_on_demand, recompute

CHEAP = (Kind.BATCH_NORM, Kind.RELU, Kind.POOLING)


class RecomputeCheap(Strategy):
    """Drop the outputs of batch norm, ReLU and pooling, and recompute them in the backward pass."""

    name = "recompute_cheap"

    def schedule(self, graph, cost, budget_bytes):
        cheap = [layer for layer in graph.forward_layers if layer.has_kind(*CHEAP)]
        graph = recompute(Repeatable(graph, cost), [Segment(layer.creates) for layer in cheap])
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()
'''


def test_a_method_needs_one_import_and_computes_what_eager_does() -> None:
    names: dict[str, type[Strategy]] = {}
    exec(METHOD, names)
    torch.manual_seed(0)
    convolutions = [
        layer
        for channels in (3, 8, 8, 8, 8)
        for layer in (nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    ]
    module = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))
    batch = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    state = {name: value.clone() for name, value in module.state_dict().items()}
    results, peaks = [], []
    for strategy in ("eager", names["RecomputeCheap"]()):
        module.load_state_dict(state)
        module.zero_grad(set_to_none=True)
        step = membench.compile(module, nn.functional.cross_entropy, batch, strategy=strategy)
        loss = step(*batch)
        results.append([loss, *(weight.grad for weight in module.parameters()), *module.buffers()])
        results[-1] = [tensor.clone() for tensor in results[-1]]
        peaks.append(step.predicted_peak_bytes)
        step.close()
    assert all(map(torch.equal, *results))
    assert peaks[1] < 0.8 * peaks[0]


# ---- a copy without the checkout --------------------------------------------------------------------

INSTALLED_PROGRAM = """
import os
from pathlib import Path
from membench.core import configuration
from membench.sweep.results import provenance, sources

here = Path(os.environ["PYTHONPATH"])
assert configuration.IS_INSTALLED
assert configuration.CONF_DIRECTORY == here / "membench" / "conf"
assert configuration.load("device", "k40m").name == "k40m"
assert configuration.ROOT.resolve() == Path.cwd()
assert provenance.git("rev-parse", "HEAD") is None
expected = ("membench.sweep.cells.cell", here / "membench/sweep/cells/cell.py")
assert sources.module_of("membench.sweep.cells.cell") == expected
assert sources.module_of("theirs.net") is None
print("passed")
"""


def test_an_installed_copy_finds_its_configuration_and_works_in_the_current_directory(tmp_path: Path) -> None:
    installed = tmp_path / "env" / "site-packages"
    shutil.copytree(ROOT / "membench", installed / "membench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CONF_DIRECTORY, installed / "membench" / "conf")
    (installed / "theirs").mkdir()
    (installed / "theirs" / "__init__.py").touch()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(installed)}
    assert _run([sys.executable, "-c", INSTALLED_PROGRAM], folder, environment) == "passed\n"


def test_a_checkout_uses_its_own_folders() -> None:
    assert not IS_INSTALLED
    assert CONF_DIRECTORY == ROOT / "conf"
    assert (ROOT / "membench" / "py.typed").is_file()


def test_papers_without_a_clone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MembenchError, match="there is no folder .*; run this in a clone of the repository"):
        known_papers(tmp_path / "experiments")


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
