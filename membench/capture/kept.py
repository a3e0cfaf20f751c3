"""Graphs of configured networks, kept between runs: a network whose step was captured before is not built again.

A kept graph is answered only where everything that decides it is as it was. Its file is named by the network's
description, the step, libraries and torch's settings. In it are the marks of all Python files that were loaded when it
was made: the contents of membench's own; of others size and time of change, by which Python itself tells whether a
compiled file is of its source. What else is wrong with a file is like its absence: the step is captured again.
"""

import copyreg
import os
import pickle
import platform
import sys
import time
import zlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from membench.core.files import cache_directory, write_whole
from membench.core.graph.task_graph import TaskGraph
from membench.core.libraries.torch_devices import attention_order
from membench.core.step.arguments import tensors_in
from membench.core.step.torch_settings import rounded_to_tf32
from membench.core.step.workload import Workload

MOST_BYTES = 2**28
"""Of all files together; the ones that were not read for the longest time are removed."""

_OWN = Path(__file__).parents[1]
_BEGAN_NS = time.time_ns() - time.process_time_ns()
"""When this process began, or a moment later: a file that was changed since may not be what was loaded."""
_LIBRARIES = (
    "torch", "torchvision", "transformers", "timm", "peft", "bitsandbytes", "torchao", "accelerate", "triton",
)  # fmt: skip
_VARIABLES = (
    "ATEN", "CUBLAS", "CUDA", "CUDNN", "DNNL", "HF_", "MKL", "NVIDIA", "ONEDNN", "PYTORCH", "TORCH", "TRANSFORMERS",
    "TRITON", "USE_", "XFORMERS",
)  # fmt: skip
"""How variables of the environment begin that change what a library does."""


class Unbuilt(nn.Module):
    """Stands for a network until it is captured.

    Args:
        described: what decides the network and its batch, as plain values in a text.
        build: makes it.
    """

    def __init__(self, described: str, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.described = described
        self._build = build

    @cached_property
    def built(self) -> nn.Module:
        """The network.

        Raises:
            MembenchError: it cannot be built as described.
        """
        return self._build()


def built(workload: Workload) -> Workload:
    """Return a workload with its network, which is built now if it was not before.

    Raises:
        MembenchError: it cannot be built as described, or see `Workload`.
    """
    module = workload.module
    return replace(workload, module=module.built) if isinstance(module, Unbuilt) else workload


def kept_graph(workload: Workload, asked: Hashable, capture: Callable[[], TaskGraph]) -> TaskGraph:
    """Return the graph of a step whose network is `Unbuilt`: the kept one, or else what `capture` returns.

    Args:
        asked: what of the step is not in the workload; its `repr` tells whether it is the same.
    """
    path = cache_directory() / "recordings" / f"{_name(workload, asked)}.pickle"
    graph = _read(path)
    if graph is None:
        graph = capture()
        _write(path, graph)
    return graph


def _name(workload: Workload, asked: Hashable) -> str:
    """Return a hash of all that decides a graph but for the sources."""
    assert isinstance(workload.module, Unbuilt)
    apart = {"module", "loss", "inputs", "targets"}  # these are described
    step = {each.name: getattr(workload, each.name) for each in fields(workload) if each.name not in apart}
    batch = [(tuple(each.shape), each.stride(), each.dtype) for each in tensors_in((workload.inputs, workload.targets))]
    return sha256(repr((workload.module.described, step, batch, asked, *_surroundings())).encode()).hexdigest()


def _surroundings() -> Iterator[Any]:
    """Yield what an answer of torch or another library depends on besides sources: versions, machine and settings."""
    yield sys.version, platform.machine(), torch.version.git_version, torch.backends.cpu.get_cpu_capability()
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            yield library, version(library)
    yield sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    if torch.cuda.is_available():
        yield [str(torch.cuda.get_device_properties(each)) for each in range(torch.cuda.device_count())]
    cudnn, attention = torch.backends.cudnn, torch.backends.cuda
    yield torch.get_num_threads(), torch.get_default_dtype(), sorted(rounded_to_tf32()), attention_order()
    yield torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield cudnn.enabled, cudnn.deterministic, cudnn.benchmark, torch.backends.mha.get_fastpath_enabled()
    yield attention.flash_sdp_enabled(), attention.mem_efficient_sdp_enabled(), attention.math_sdp_enabled()
    yield attention.cudnn_sdp_enabled(), torch.backends.mkldnn.is_available()


def _read(path: Path) -> TaskGraph | None:
    """Return what a file keeps; None if it is missing, damaged, or of other sources."""
    try:
        content = path.read_bytes()
        packed = content[32:]
        if sha256(packed).digest() != content[:32]:
            return None
        stream = BytesIO(zlib.decompress(packed))
        roots, marks = _Reader(stream).load()
        if roots != {name: _origin(name) for name in roots} or marks != {name: _mark(name) for name in marks}:
            return None
        graph = _Reader(stream).load()
    except Exception:  # a damaged pickle may raise any
        return None
    with suppress(OSError):
        path.touch()
    return graph if isinstance(graph, TaskGraph) else None


def _write(path: Path, graph: TaskGraph) -> None:
    """Keep a graph, unless it does not come back as it is, a source changes just now, or there is no place for it."""
    loaded, stream = _loaded(), BytesIO()
    try:
        if any(Path(file).stat().st_mtime_ns >= _BEGAN_NS for file in loaded[1]):
            return
        for each in (loaded, graph):
            _Writer(stream, pickle.HIGHEST_PROTOCOL).dump(each)
        stream.seek(0)
        if [_Reader(stream).load() for _ in range(2)] != [loaded, graph]:
            return
        packed = zlib.compress(stream.getvalue(), 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, sha256(packed).digest() + packed)
        _remove_oldest(path.parent)
    except (OSError, pickle.PicklingError, pickle.UnpicklingError, TypeError, AttributeError):
        return  # as in a folder that cannot be written, or with an output that is another library's object


def _loaded() -> tuple[dict[str, str | None], dict[str, Any]]:
    """Return where each loaded package or module comes from, and the marks of the files of them all."""
    files = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and name.partition(".")[0] not in ("__main__", "__mp_main__"):
            files[name] = file
    roots = {name.partition(".")[0] for name in files}
    return {name: _origin(name) for name in sorted(roots)}, {file: _mark(file) for file in sorted({*files.values()})}


def _origin(name: str) -> str | None:
    """Return the file of which a package or module would be imported; None: of none, as where others import it."""
    for finder in sys.meta_path:
        with suppress(ImportError, ValueError):
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec.origin
    return None


def _mark(file: str) -> Any:
    """Return what tells a file from others of its name; None: it is missing."""
    path = Path(file)
    try:
        if path.is_relative_to(_OWN):
            return sha256(path.read_bytes()).hexdigest()
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _remove_oldest(folder: Path) -> None:
    """Remove files that were not read for the longest time until the others are as small as they may be."""
    found = sorted((each.stat().st_mtime_ns, each.stat().st_size, each) for each in folder.glob("*.pickle"))
    for position, (_, _, path) in enumerate(found):
        if sum(size for _, size, _ in found[position:]) <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)


def _format(name: str) -> Any:
    """Return torch's dtype, layout or memory format of a name such as ``"torch.float32"``."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, _FORMATS):
        raise pickle.UnpicklingError(f"torch has no format {name}")
    return found


_FORMATS = (torch.dtype, torch.layout, torch.memory_format)


class _Writer(pickle.Pickler):
    """Writes formats by their names; pickle would look for a module that has them, and name any that imports torch."""

    dispatch_table = copyreg.dispatch_table | {kind: lambda it: (_format, (str(it),)) for kind in _FORMATS}


class _Reader(pickle.Unpickler):
    """Reads plain values, records of graphs and what torch has of tensors, and calls nothing else that is named."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NAMED:
            return _NAMED[module, name]
        if module.startswith("membench.core.graph."):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


_NAMED = {(each.__module__, each.__name__): each for each in (_format, torch.device, torch.Size)}
