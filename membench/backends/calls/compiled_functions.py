"""Programs that Inductor has compiled for the CPU: all of a graph at once, and once for all processes of a machine.

    ~/.cache/membench/programs/  1c0f.json   the Python source for one program, with its kernels in C++
                                 77aa.so     the kernels of all programs that were compiled together

Inductor writes the source of each program (`membench.core.libraries.torch_inductor`), and one run of the compiler
builds all kernels. Where a compiler would build one kernel at a time, as Inductor's own cache has it, its headers take
most of the time.
"""

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch
from torch import Tensor

from membench.backends.calls.fused_graph import checked_graph, unfilled
from membench.backends.calls.kernel_library import CompiledFunction, function_of, library_source, opened_library
from membench.core.errors import one_line
from membench.core.files import cache_directory, write_whole
from membench.core.graph.fused_calls import FusedCalls
from membench.core.libraries.torch_inductor import build_library, loaded, written_source

Function = Callable[[list[Tensor]], Sequence[Tensor]]
"""Takes a program's inputs in a list, which it empties; returns the outputs."""

_log = logging.getLogger("membench")


@dataclass(frozen=True)
class _Written:
    """A program's code in Python, and its kernels."""

    source: str
    kernels: tuple[CompiledFunction, ...]


class CompiledFunctions:
    """The functions of programs.

    Args:
        device: where they run.
        threads: threads of the process that the code is compiled for.
        folder: the cache's folder; None: below that of membench's caches.
    """

    def __init__(self, device: torch.device, threads: int, folder: Path | None = None) -> None:
        self._device = device
        versions = torch.__version__, sys.implementation.cache_tag
        self._machine = repr((versions, str(device), threads, _processor()))
        self._folder = folder or cache_directory() / "programs"
        self._functions: dict[FusedCalls, Function | None] = {}
        self._reasons: dict[FusedCalls, str] = {}  # why programs are not compiled, until they are logged

    def function(self, program: FusedCalls) -> Function | None:
        """Return the function of a program, compiled now if it has not been; None if Inductor does not compile it."""
        self.compile([program])
        return self._functions[program]

    def compile(self, programs: Sequence[FusedCalls]) -> None:
        """Compile the programs that have not been; log the names of those that Inductor does not compile."""
        missing = [each for each in programs if each not in self._functions and not self._find(each)]
        written = [(program, found) for program in missing if (found := self._write(program))]
        if written:
            try:
                self._build(written)
            except Exception:  # one of them, or all: there is no compiler
                for each in written:
                    self._build_alone(*each)
        for reason in dict.fromkeys(self._reasons.values()):
            refused = [program for program, given in self._reasons.items() if given == reason]
            _log.warning(
                "Inductor does not compile %s; eager PyTorch runs them: %s", "; ".join(map(_named, refused)), reason
            )
        self._functions.update(dict.fromkeys(self._reasons))
        self._reasons.clear()

    def _find(self, program: FusedCalls) -> bool:
        """Take a program's function from the cache; return whether it is there."""
        try:
            found = json.loads(self._path(program).read_text())
            self._functions[program] = _function(found["source"], self._folder / found["library"])
        except (
            OSError,
            ImportError,
            ValueError,
            KeyError,
            AttributeError,
        ):  # nothing, a broken file, or a library without the kernels
            return False
        return True

    def _path(self, program: FusedCalls) -> Path:
        digest = hashlib.sha256(f"{self._machine} {program!r}".encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"

    def _write(self, program: FusedCalls) -> _Written | None:
        try:
            graph = checked_graph(program, self._device)
            source = written_source(graph, [unfilled(value, self._device) for value in program.inputs])
            kernels = _kernels_in(source)
            library_source(kernels)
        except Exception as error:  # a compiler fails in its own ways
            self._reasons[program] = one_line(error)
            return None
        return _Written(source, kernels)

    def _build_alone(self, program: FusedCalls, written: _Written) -> None:
        try:
            self._build([(program, written)])
        except Exception as error:
            self._reasons[program] = one_line(error)

    def _build(self, written: Sequence[tuple[FusedCalls, _Written]]) -> None:
        """Compile the kernels of programs as one library, and keep all of it in the cache."""
        source = library_source(kernel for _, each in written for kernel in each.kernels)
        name = f"{hashlib.sha256((self._machine + source).encode()).hexdigest()[:32]}.so"
        self._folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self._folder) as temporary:
            path = Path(temporary) / "kernels.cpp"
            path.write_text(source)
            build_library(path, Path(temporary)).replace(self._folder / name)
        for program, each in written:
            write_whole(self._path(program), json.dumps({"library": name, "source": each.source}))
            self._functions[program] = _function(each.source, self._folder / name)


def _function(source: str, library: Path) -> Function:
    """Return the function of a program's source.

    Raises:
        ImportError: the library cannot be loaded.
        AttributeError: it does not have the kernels.
    """
    opened = _opened(library)
    return loaded(source, lambda types, code: function_of(CompiledFunction(tuple(types), code), opened))


@cache
def _opened(library: Path) -> ModuleType:
    return opened_library(library)


def _named(program: FusedCalls) -> str:
    return " + ".join(call.operator.split(".")[1] for call in program.calls)


def _kernels_in(source: str) -> tuple[CompiledFunction, ...]:
    found: list[CompiledFunction] = []

    def load(types: Sequence[str], code: str) -> Callable[..., None]:
        found.append(CompiledFunction(tuple(types), code))
        return lambda *_: None

    loaded(source, load)
    return tuple(found)


def _processor() -> str:
    """Return what code that is compiled for this machine's processor depends on."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else [platform.processor()]
    kinds = ("model name", "flags", "Features")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(kinds) or len(lines) == 1))
