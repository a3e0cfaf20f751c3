"""Kernels in C++ as one library: a compiler spends most of its time on the headers, which a kernel of its own would each include.

Kernel(("const float*", "float*"), "... void kernel(const float* in_ptr0, float* out_ptr0) {...}")

extern "C" void kernel_5f1c(const float* in_ptr0, float* out_ptr0) {...}
extern "C" const char* run_5f1c(const float* a0, float* a1) {...}            returns what it throws, as text
"""

import ctypes
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

_INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
_NAME = re.compile(r"\bkernel\(")


@dataclass(frozen=True)
class Kernel:
    """A function on the memory of tensors.

    Attributes:
        types: of its parameters in C++, each a pointer.
        source: of a function called ``kernel``.
    """

    types: tuple[str, ...]
    source: str

    @cached_property
    def name(self) -> str:
        """What it is called in a library: equal for equal kernels."""
        return hashlib.sha256(repr((self.types, self.source)).encode()).hexdigest()[:24]


def library_source(kernels: Iterable[Kernel]) -> str:
    """Return the source of a library.

    Raises:
        ValueError: a kernel takes something else than pointers.
    """
    unique = {kernel.name: kernel for kernel in kernels}
    includes = dict.fromkeys(found for each in unique.values() for found in _INCLUDE.findall(each.source))
    return "\n".join(
        (*includes, "#include <exception>", "#include <string>", *map(_functions, unique.values()))
    )


def _functions(kernel: Kernel) -> str:
    if not all(each.endswith("*") for each in kernel.types):
        raise ValueError(f"a kernel takes {', '.join(kernel.types)}, which are not all pointers")
    body = _NAME.sub(f"kernel_{kernel.name}(", _INCLUDE.sub("", kernel.source), count=1)
    parameters = ", ".join(f"{kind} a{number}" for number, kind in enumerate(kernel.types))
    arguments = ", ".join(f"a{number}" for number in range(len(kernel.types)))
    return f"""{body}
extern "C" const char* run_{kernel.name}({parameters}) {{
    static thread_local std::string thrown;
    try {{
        kernel_{kernel.name}({arguments});
        return nullptr;
    }} catch (const std::exception& error) {{
        thrown = error.what();
        return thrown.c_str();
    }}
}}"""


def function_of(kernel: Kernel, library: ctypes.CDLL) -> Callable[..., None]:
    """Return a kernel of a library as a function on tensors, which raises RuntimeError where the kernel throws."""
    run = library[f"run_{kernel.name}"]
    run.restype, run.argtypes = ctypes.c_char_p, [ctypes.c_void_p] * len(kernel.types)

    def function(*tensors: Tensor) -> None:
        thrown = run(*[tensor.data_ptr() for tensor in tensors])
        if thrown is not None:
            raise RuntimeError(thrown.decode())

    return function
