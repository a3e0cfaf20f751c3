"""Graphs kept between runs are those that capture makes, and none that another source, version or setting made."""

import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from membench.capture import kept
from membench.capture.capture import Captures
from membench.capture.kept import Unbuilt, kept_graph
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.step.workload import Workload
from membench.sweep.cells.model import Model

ASKED = (4, None, False)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for all that are loaded; graphs are kept in a folder beside it."""
    file = tmp_path / "source.py"
    file.write_text("size = 1\n")
    os.utime(file, ns=(1, 1))
    monkeypatch.setenv("MEMBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_loaded", lambda: ({"json": kept._origin("json")}, {str(file): kept._mark(str(file))}))
    return file


@pytest.fixture(scope="module")
def graph() -> TaskGraph:
    return Captures(work().workload).graph_at(4)


class Asked:
    """A step whose graph is asked for; counts how often it is captured."""

    def __init__(self, workload: Workload, graph: TaskGraph | None = None) -> None:
        self.workload, self.graph, self.captured = workload, graph, 0

    def __call__(self) -> TaskGraph:
        assert self.graph is not None
        return kept_graph(self.workload, ASKED, self._capture)

    def _capture(self) -> TaskGraph:
        assert self.graph is not None
        self.captured += 1
        return self.graph


def work(graph: TaskGraph | None = None, batch_size: int = 4) -> Asked:
    return Asked(Model.named("digits_cnn").workload(batch_size, seed=0, device="meta", is_kept=True), graph)


def files(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "recordings").iterdir())


def test_a_kept_graph_is_the_captured_one_and_needs_no_network(source: Path, graph: TaskGraph) -> None:
    first, again = work(graph), work(graph)
    assert first() is graph and again() == graph
    assert (first.captured, again.captured) == (1, 0)
    assert isinstance(again.workload.module, Unbuilt) and "built" not in vars(again.workload.module)


def _with_other_sources(source: Path, patch: pytest.MonkeyPatch) -> None:
    source.write_text("size = 2\n")


def _with_another_package(source: Path, patch: pytest.MonkeyPatch) -> None:
    (source.parent / "json.py").touch()
    patch.syspath_prepend(str(source.parent))


def _with_another_version(source: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "version", lambda name: "0.1" if name == "torchvision" else version(name))


def _with_a_variable(source: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")


def _with_another_setting(source: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "rounded_to_tf32", lambda: frozenset({Kind.LINEAR}))


def _damaged(source: Path, patch: pytest.MonkeyPatch) -> None:
    [path] = files(source)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut_off(source: Path, patch: pytest.MonkeyPatch) -> None:
    [path] = files(source)
    path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize(
    "change",
    [
        _with_other_sources,
        _with_another_package,
        _with_another_version,
        _with_a_variable,
        _with_another_setting,
        _damaged,
        _cut_off,
    ],
)
def test_after_a_change_the_step_is_captured_again(
    change: Callable[[Path, pytest.MonkeyPatch], None], source: Path, graph: TaskGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(graph)()
    change(source, monkeypatch)
    again = work(graph)
    assert again() == graph and again.captured == 1


def test_another_step_has_another_graph(source: Path, graph: TaskGraph) -> None:
    work(graph)()
    for workload in (
        work(batch_size=5).workload,
        replace(work().workload, precision=Precision.BF16),
        replace(work().workload, holds_gradients=True),
        Model.named("digits_alexnet").workload(4, seed=0, device="meta", is_kept=True),
    ):
        other = Asked(workload, graph)
        other()
        assert other.captured == 1
    assert len(files(source)) == 5


def test_membenchs_own_sources_count_by_their_content() -> None:
    content = Path(kept.__file__).read_bytes()
    assert kept._mark(kept.__file__) == sha256(content).hexdigest()


def test_what_changes_while_it_is_captured_is_not_kept(source: Path, graph: TaskGraph) -> None:
    os.utime(source)
    work(graph)()
    assert not (source.parent / "cache").exists()


def test_a_folder_that_cannot_be_written_is_no_error(source: Path, graph: TaskGraph) -> None:
    (source.parent / "cache").touch()
    assert work(graph)() is graph


def test_a_graph_with_objects_of_others_is_not_kept(source: Path, graph: TaskGraph) -> None:
    work(replace(graph, output=source))()
    assert not (source.parent / "cache").exists()


def test_the_oldest_files_make_room(source: Path, graph: TaskGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    work(graph)()
    [first] = files(source)
    os.utime(first, ns=(1, 1))
    monkeypatch.setattr(kept, "MOST_BYTES", 3 * first.stat().st_size // 2)
    work(graph, batch_size=5)()
    [left] = files(source)
    assert left != first


class _Malicious:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, ("made",)


def test_a_file_of_a_stranger_calls_nothing(
    source: Path, graph: TaskGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work(graph)()
    [path] = files(source)
    packed = zlib.compress(pickle.dumps(_Malicious()))
    path.write_bytes(sha256(packed).digest() + packed)
    again = work(graph)
    assert again() == graph and again.captured == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("target", "is_kept"), [("membench.models.digits.digits_cnn", True), (f"{__name__}.digits_cnn", False)]
)
def test_a_network_of_ones_own_is_built_whenever_it_is_asked_for(target: str, is_kept: bool) -> None:
    named = Model.named("digits_cnn")
    model = replace(named, module={**named.module, "_target_": target})
    workload = model.workload(2, seed=0, device="meta", is_kept=True)
    assert isinstance(workload.module, Unbuilt) is is_kept


def digits_cnn(**options: object) -> torch.nn.Module:
    return torch.nn.Flatten()


@pytest.mark.slow
@pytest.mark.parametrize("command", [["predict", "optimizer=sgd", "breakdown=true"], ["run", "hydra.run.dir=out"]])
def test_a_command_prints_the_same_with_and_without_kept_graphs(command: list[str], tmp_path: Path) -> None:
    words = [*command, "model=digits_cnn", "device=rtx4090", "batch_size=4", "output=json"]
    environment = {**os.environ, "MEMBENCH_CACHE": str(tmp_path / "cache")}
    printed, kept_files = [], []
    for place in (tmp_path / "first", tmp_path / "second"):
        place.mkdir()
        program = [sys.executable, "-m", "membench", *words]
        printed.append(subprocess.run(program, cwd=place, env=environment, capture_output=True, check=True).stdout)
        kept_files.append([each.stat().st_ino for each in (tmp_path / "cache" / "recordings").iterdir()])
    assert printed[0] == printed[1]
    assert kept_files[0] == kept_files[1] and len(kept_files[0]) == 1
