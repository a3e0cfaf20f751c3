"""torch.compile by its private API: what it was told, and its source for the CPU as a library of kernels.

With `membench.core.libraries.torch_internals` and `torch_contexts`, the only module that names private attributes of
torch; the same test checks it. Inductor is imported where it is used: that takes seconds, and source that it wrote
earlier needs only torch.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import getclosurevars
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from membench.core.libraries.one_thread import CAPTURING, replaced

Load = Callable[[Sequence[str], str], Callable[..., None]]
"""Returns a kernel's function of tensors, by the C types of its parameters and its source in C++."""

_OPTIONS = {"size_asserts": False, "alignment_asserts": False, "fx_graph_cache": False}
"""The layouts of a program's inputs are known, and its source is kept elsewhere."""
_IMPORT = re.compile(r"^from torch\._\S+ import (?:\w+ as )?(\w+)$")


def keeps_layout() -> bool:
    """Return whether Inductor must not change images to channels last, by its option ``layout_optimization``."""
    # to import it takes seconds; until then the option has its default
    config = sys.modules.get("torch._inductor.config")
    return config is not None and not config.layout_optimization


def written_source(graph: torch.fx.GraphModule, examples: Sequence[Tensor]) -> str:
    """Return Inductor's Python source for a graph of operators on tensors laid out as examples; see `loaded`.

    Raises:
        Exception: Inductor does not compile the graph.
        ValueError: the source needs tensors that it does not contain.
    """
    from torch._inductor import compile as compile_graph
    from torch._inductor.async_compile import AsyncCompile

    scopes: list[dict[str, Any]] = []
    with (
        CAPTURING,
        torch.no_grad(),
        replaced(AsyncCompile, "cpp_pybinding", lambda *_: None),
        replaced(AsyncCompile, "wait", lambda _, scope: scopes.append(scope)),
    ):
        compile_graph(graph, [*examples], options=_OPTIONS)
    scope = next(scope for scope in scopes if "call" in scope)
    if constants := [name for name, value in scope.items() if isinstance(value, Tensor)]:
        raise ValueError(f"its code needs the tensors {', '.join(constants)}")
    lines: list[str] = Path(scope["__file__"]).read_text().split("\n")
    uses = "\n".join(line for line in lines if not _IMPORT.match(line))
    return "\n".join(line for line in lines if _is_needed(line, uses))


def _is_needed(line: str, uses: str) -> bool:
    imported = _IMPORT.match(line)
    if imported is None:
        return True
    return imported[1] != "AsyncCompile" and re.search(rf"\b{imported[1]}\b", uses) is not None


def loaded(source: str, load: Load) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """Return the function of written source, which takes a list of tensors and empties it.

    Args:
        load: called for each kernel.
    """

    class AsyncCompile:
        cpp_pybinding = staticmethod(load)
        wait = staticmethod(lambda _: None)

    scope: dict[str, Any] = {"AsyncCompile": AsyncCompile, "__name__": "a program"}
    exec(compile(source, "<a program>", "exec"), scope)
    call: Callable[[list[Tensor]], Sequence[Tensor]] = scope["call"]
    return call


def build_library(source: Path, folder: Path) -> Path:
    """Compile a file of C++ as Inductor compiles its kernels for this machine, and return the library in the folder.

    Raises:
        Exception: the compiler is missing, or refuses the source.
    """
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    options = CppTorchDeviceOptions(vec_isa=pick_vec_isa(), device_type="cpu", include_pytorch=False, shared=True)
    builder = CppBuilder(source.stem, str(source), options, str(folder))
    builder.build()
    return Path(builder.get_target_file_path())


def memory_function_address() -> int:
    """Return the address of torch's ``void* (PyObject*)`` that returns a tensor's memory, and throws for others."""
    address: int = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
    return address


_ORIGINALS = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable")
"""Attributes by which functions of Dynamo hold the one that they call; the second is that of earlier releases."""

MEMORY_BUDGET = "torch._functorch.config.activation_memory_budget"
"""The option that bounds what compiled code keeps for the backward pass, as a share of what it would keep."""

_WITHOUT_EFFECT = re.compile(
    "assert|cache|check|compile_threads|debug|dump|fail|graph_diagram|limit|log|name|print|profil|repro|report|seed|suppress|test|timeout|trace|verbose|warn|worker|layout_optimization$"
)
"""Names of options that change neither memory nor time of a compiled step, and one that is read."""


@dataclass(frozen=True)
class Compiler:
    """What `torch.compile` was told about a module or function.

    Attributes:
        name: the backend's name; ``"inductor"`` by default.
        options: options that its ``mode`` and ``options`` change, by name.
        is_dynamic: sizes are taken as numbers that change.
    """

    name: str
    options: Mapping[str, object]
    is_dynamic: bool


def compiler_of(given: Callable[..., Any] | None) -> Compiler | None:
    """Return what compiles a call of a module or function; None if it runs as it is.

    With ``fullgraph=True`` too, of which `get_compiler_config` returns nothing: its context has the backend.
    """
    if isinstance(given, torch.nn.Module) and type(given).__name__ != "OptimizedModule":
        given = given._compiled_call_impl
    configuration = getattr(given, "get_compiler_config", None)
    if configuration is None:
        return None
    from torch._dynamo import eval_frame  # imported already, by what has compiled

    if eval_frame._stance.stance == "force_eager":
        return None
    backend: Any = getclosurevars(configuration).nonlocals["self"].callback
    while (inner := next((vars(backend)[each] for each in _ORIGINALS if each in vars(backend)), None)) is not None:
        backend = inner
    name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", type(backend).__name__)
    return Compiler(str(name), dict(getattr(backend, "config", None) or {}), bool(getattr(backend, "dynamic", False)))


def changed_options() -> dict[str, object]:
    """Return by full name the options of Dynamo, AOTAutograd and Inductor that the program has set for all code."""
    found: dict[str, object] = {}
    for module in ("torch._functorch.config", "torch._inductor.config", "torch._dynamo.config"):
        # to import one takes seconds; until then its options have their defaults
        if (config := sys.modules.get(module)) is not None:
            values = {name: getattr(config, name) for name in config._config if not config._is_default(name)}
            found |= {
                f"{module}.{name}": value
                for name, value in values.items()
                # a value that was set and set back is not the default to torch
                if value != config._config[name].default and not _WITHOUT_EFFECT.search(name)
            }
    return found
