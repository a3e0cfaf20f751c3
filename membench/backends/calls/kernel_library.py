"""Kernels in C++ as one library, since a compiler spends most of its time on the headers, which they share.

Kernel(("const float*", "float*"), "... void kernel(const float* in_ptr0, float* out_ptr0) {...}")

void kernel_5f1c(const float* in_ptr0, float* out_ptr0) {...}
PyObject* run_5f1c(PyObject*, PyObject* const* given, Py_ssize_t) {...}  calls it with the memory of the tensors given

The library is a module of Python, because a kernel of a small network takes less time than a call through ctypes. It
does not include torch's headers: torch has a function that returns the memory of a tensor, whose address the module is
told.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from membench.core.libraries.torch_inductor import memory_function_address

_INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
_NAME = re.compile(r"\bkernel\(")
_MODULE = "kernels"
_HEAD = """
#include <Python.h>
#include <exception>

static void* (*memory_of)(PyObject*);

static PyObject* set_memory_function(PyObject*, PyObject* address) {
    memory_of = reinterpret_cast<void* (*)(PyObject*)>(PyLong_AsVoidPtr(address));
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
}

struct OtherThreadsRun {
    PyThreadState* state = PyEval_SaveThread();
    ~OtherThreadsRun() { PyEval_RestoreThread(state); }
};

template <typename Call>
static PyObject* none_or_raised(Call call) {
    try {
        call();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_NONE;
}
"""


@dataclass(frozen=True)
class CompiledFunction:
    """A function on the memory of tensors.

    Attributes:
        types: types in C++ of its parameters, each a pointer.
        source: source of a function called ``kernel``.
    """

    types: tuple[str, ...]
    source: str

    @cached_property
    def name(self) -> str:
        """What it is called in a library: equal for equal kernels."""
        return hashlib.sha256(repr((self.types, self.source)).encode()).hexdigest()[:24]


def library_source(kernels: Iterable[CompiledFunction]) -> str:
    """Return the source of a library.

    Raises:
        ValueError: a kernel takes something else than pointers.
    """
    unique = {kernel.name: kernel for kernel in kernels}
    includes = dict.fromkeys(found for each in unique.values() for found in _INCLUDE.findall(each.source))
    functions = "\n".join(map(_functions, unique.values()))
    methods = "\n".join(
        f'    {{"{name}", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_{name})), '
        "METH_FASTCALL, nullptr},"
        for name in unique
    )
    return "\n".join((_HEAD, *includes, functions, _module(methods)))


def _functions(kernel: CompiledFunction) -> str:
    if not all(each.endswith("*") for each in kernel.types):
        raise ValueError(f"a kernel takes {', '.join(kernel.types)}, which are not all pointers")
    body = _NAME.sub(f"kernel_{kernel.name}(", _INCLUDE.sub("", kernel.source), count=1)
    memories = "\n        ".join(
        f"auto a{number} = static_cast<{kind}>(memory_of(given[{number}]));" for number, kind in enumerate(kernel.types)
    )
    arguments = ", ".join(f"a{number}" for number in range(len(kernel.types)))
    return f"""{body}
static PyObject* run_{kernel.name}(PyObject*, PyObject* const* given, Py_ssize_t) {{
    return none_or_raised([&] {{
        {memories}
        OtherThreadsRun meanwhile;
        kernel_{kernel.name}({arguments});
    }});
}}"""


def _module(methods: str) -> str:
    return f"""
static PyMethodDef methods[] = {{
    {{"set_memory_function", set_memory_function, METH_O, nullptr}},
{methods}
    {{nullptr, nullptr, 0, nullptr}},
}};

static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{_MODULE}", nullptr, 0, methods}};

PyMODINIT_FUNC PyInit_{_MODULE}() {{
    return PyModuleDef_Init(&definition);
}}
"""


def opened_library(path: Path) -> ModuleType:
    """Return a library that was built.

    Raises:
        ImportError: it cannot be loaded.
    """
    loader = ExtensionFileLoader(_MODULE, str(path))
    spec = spec_from_loader(_MODULE, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    module.set_memory_function(memory_function_address())
    return module


def function_of(kernel: CompiledFunction, library: ModuleType) -> Callable[..., None]:
    """Return a kernel of a library as a function on tensors, which raises RuntimeError where the kernel throws.

    Raises:
        AttributeError: the library does not have it.
    """
    function: Callable[..., None] = getattr(library, kernel.name)
    return function
