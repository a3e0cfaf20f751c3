"""Which tensors a Triton kernel reads and writes, by its source.

A pointer flows from a parameter through assignments to loads and stores. The order of statements and the branches that
a launch takes are left out, so a kernel may do less than is found here, and never more.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_READ = frozenset({"load", "load_tensor_descriptor", "gather"})
_WRITTEN = frozenset({"store", "store_tensor_descriptor", "scatter"})


@dataclass
class Accesses:
    """Names of parameters whose memory a kernel reads or writes."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)


def accesses(kernel: Callable[..., Any], known: Mapping[Callable[..., Any], Accesses] | None = None) -> Accesses:
    """Return what a kernel's Python function reads and writes, functions that it calls included.

    Args:
        known: accesses of functions that are being looked at, which call this one.
    """
    found = Accesses()
    known = {**(known or {}), kernel: found}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kernel))).body
    assert isinstance(definition, ast.FunctionDef)
    pointers = _pointers(definition)
    for call in (node for node in ast.walk(definition) if isinstance(node, ast.Call)):
        for argument, reads, writes in _touched(call, kernel, known):
            names = set().union(*(pointers.get(name, ()) for name in _names(argument)))
            found.reads |= names if reads else set()
            found.writes |= names if writes else set()
    return found


def _pointers(definition: ast.FunctionDef) -> dict[str, set[str]]:
    """Return for each variable the parameters that its value may point into."""
    arguments = definition.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    pointers = {each.arg: {each.arg} for each in parameters}
    before = -1
    while before != (before := sum(map(len, pointers.values()))):
        for targets, value in _assignments(definition):
            sources = set().union(*(pointers.get(name, ()) for name in _names(value)))
            for name in targets:
                pointers.setdefault(name, set()).update(sources)
    return pointers


def _assignments(definition: ast.FunctionDef) -> Iterator[tuple[list[str], ast.AST]]:
    for node in ast.walk(definition):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield [name for target in targets for name in _names(target)], value
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield list(_names(target)), value
            case ast.AnnAssign(target=target, value=ast.AST() as value) | ast.For(target=target, iter=value):
                yield list(_names(target)), value


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the variables of an expression, without those that only say where loaded values lie."""
    if isinstance(node, ast.Call) and _called(node) in _READ:
        return
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _touched(
    call: ast.Call, kernel: Callable[..., Any], known: Mapping[Callable[..., Any], Accesses]
) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Yield the expressions that a call reads from or writes to, and which of both."""
    name = _called(call)
    is_atomic = name.startswith("atomic_")
    if name in _READ | _WRITTEN or is_atomic:
        is_method = isinstance(call.func, ast.Attribute) and not _is_language(call.func.value, kernel)
        pointer = call.func.value if is_method else _pointer(call)  # type: ignore[attr-defined]
        if pointer is not None:
            yield pointer, name in _READ or is_atomic, name in _WRITTEN or is_atomic
        return
    inner = _function(call.func, kernel)
    if inner is None:
        return
    inside = known.get(inner) or accesses(inner, known)
    given = list(zip(inspect.signature(inner).parameters, call.args, strict=False))
    for parameter, argument in (*given, *((each.arg, each.value) for each in call.keywords if each.arg)):
        yield argument, parameter in inside.reads, parameter in inside.writes


def _pointer(call: ast.Call) -> ast.AST | None:
    named = (each.value for each in call.keywords if each.arg in ("pointer", "desc"))
    return call.args[0] if call.args else next(named, None)


def _is_language(owner: ast.AST, kernel: Callable[..., Any]) -> bool:
    """Return whether a name is a module, such as ``tl``, and not a descriptor whose method is called."""
    return inspect.ismodule(_value(owner, kernel))


def _function(called: ast.AST, kernel: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the Python function of another kernel that is called, None for functions of Triton's language."""
    function = python_function(_value(called, kernel))
    is_language = getattr(function, "__module__", "").startswith("triton.")
    return None if function is None or is_language else function


def _value(name: ast.AST, kernel: Callable[..., Any]) -> Any:
    match name:
        case ast.Name(id=identifier):
            return inspect.getclosurevars(kernel).nonlocals.get(identifier, kernel.__globals__.get(identifier))
        case ast.Attribute(value=owner, attr=attribute):
            return getattr(_value(owner, kernel), attribute, None)
    return None


def python_function(kernel: Any) -> Callable[..., Any] | None:
    """Return the function behind a kernel's ``triton.jit``, ``autotune`` and ``heuristics``, None of anything else."""
    if not hasattr(kernel, "fn"):
        return None
    while not inspect.isfunction(kernel):
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            return None
    function: Callable[..., Any] = kernel
    return function
