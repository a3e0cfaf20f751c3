"""Inductor by its private API: the source that it writes for a graph on the CPU, and a library of the kernels in that source.

With `membench.core.torch_internals` and `torch_contexts`, the only module that names private attributes of torch; the same test
checks it. Inductor is imported where it is used: that takes seconds, and source that it wrote earlier needs only torch.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

Load = Callable[[Sequence[str], str], Callable[..., None]]
"""Returns the function of a kernel, which takes tensors; its arguments are the C types of its parameters, and its source in C++."""

_OPTIONS = {"size_asserts": False, "alignment_asserts": False, "fx_graph_cache": False}
"""The layouts of a program's inputs are known, and its source is kept elsewhere."""
_IMPORT = re.compile(r"^from torch\._\S+ import (?:\w+ as )?(\w+)$")


def keeps_layout() -> bool:
    """Return whether Inductor must not change images to channels last, by its option ``layout_optimization``."""
    # to import it takes seconds; until then the option has its default
    config = sys.modules.get("torch._inductor.config")
    return config is not None and not config.layout_optimization


def written_source(graph: torch.fx.GraphModule, examples: Sequence[Tensor]) -> str:
    """Return Python source that Inductor writes for a graph of operators, on tensors in the layouts of examples; see `loaded`.

    Raises:
        Exception: Inductor does not compile the graph.
        ValueError: the source needs tensors that it does not contain.
    """
    from torch._inductor import compile as compile_graph
    from torch._inductor.async_compile import AsyncCompile

    scopes: list[dict[str, Any]] = []
    with (
        torch.no_grad(),
        patch.object(AsyncCompile, "cpp_pybinding", lambda *_: None),
        patch.object(AsyncCompile, "wait", lambda _, scope: scopes.append(scope)),
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
    """Compile a file of C++ as Inductor compiles its kernels for this machine, and return the library that it is in the folder.

    Raises:
        Exception: the compiler is missing, or refuses the source.
    """
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    options = CppTorchDeviceOptions(
        vec_isa=pick_vec_isa(), device_type="cpu", include_pytorch=False, shared=True
    )
    builder = CppBuilder(source.stem, str(source), options, str(folder))
    builder.build()
    return Path(builder.get_target_file_path())


def memory_function_address() -> int:
    """Return the address of torch's function ``void* (PyObject*)`` that returns a tensor's memory, and throws for another object."""
    address: int = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
    return address
