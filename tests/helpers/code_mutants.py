"""Mutants of a module's code: a call left out, exchanged or with another argument; a condition turned."""

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class CodeMutant:
    """A changed module.

    Attributes:
        name: method, what was changed, and the code there.
        original: the code as it is.
        changed: the number of the changed node among all.
        change: changes the node.
    """

    name: str
    original: ast.Module
    changed: int
    change: Callable[[Any], None]

    def load(self, original: ModuleType) -> ModuleType:
        """Return the changed module beside the original, copied only here, as tests that do not run have mutants."""
        tree = deepcopy(self.original)
        self.change(list(ast.walk(tree))[self.changed])
        module = ModuleType(original.__name__)
        module.__file__ = original.__file__
        exec(compile(ast.fix_missing_locations(tree), f"<{self.name}>", "exec"), module.__dict__)
        return module


def code_mutants(module: ModuleType, ordered: Collection[str], replaced: Mapping[str, str]) -> Iterator[CodeMutant]:
    """Yield the mutants of all methods of a module's classes and of its functions.

    Args:
        ordered: names of methods whose calls are exchanged with the next statement, or with the one before.
        replaced: expressions by what takes the place of each, one occurrence after another; of names those of arguments
            alone.
    """
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    nodes = list(ast.walk(tree))
    counts: Counter[str] = Counter()
    for method in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        inside = set(map(id, ast.walk(method)))
        for number, node in enumerate(nodes):
            if id(node) not in inside:
                continue
            for what, change in (*_of_statements(node, ordered), *_of_expressions(node, method, replaced)):
                name = f"{method.name}: {what}"
                counts[name] += 1
                again = f" ({counts[name]})" if counts[name] > 1 else ""
                yield CodeMutant(name + again, tree, number, change)


_Change = tuple[str, Callable[[Any], None]]
"""What is changed, and a function that changes the same node of a copy."""


def _of_statements(node: ast.AST, ordered: Collection[str]) -> Iterator[_Change]:
    for part in ("body", "orelse", "finalbody"):
        statements = getattr(node, part, None)
        if not isinstance(statements, list):
            continue
        for at, statement in enumerate(statements):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
                continue
            yield f"without {ast.unparse(statement)}", partial(_leave_out, part, at)
            called = statement.value.func
            if isinstance(called, ast.Attribute) and called.attr in ordered and len(statements) > 1:
                other = at + 1 if at + 1 < len(statements) else at - 1
                yield f"moved {ast.unparse(statement)}", partial(_exchange, part, at, other)


def _of_expressions(node: ast.AST, method: ast.FunctionDef, replaced: Mapping[str, str]) -> Iterator[_Change]:
    if isinstance(node, ast.If | ast.IfExp):
        yield f"not {ast.unparse(node.test)}", _turn
    for field, value in ast.iter_fields(node):
        for at, part in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(part, ast.expr) and not _is_local(part, method):
                text = ast.unparse(part)
                if text in replaced:
                    new = replaced[text]
                    yield (f"{new} for {text}", partial(_replace, field, at if isinstance(value, list) else None, new))


def _is_local(node: ast.expr, method: ast.FunctionDef) -> bool:
    """Return whether an expression is the name of a variable that is not an argument."""
    return isinstance(node, ast.Name) and node.id not in {argument.arg for argument in method.args.args}


def _leave_out(part: str, at: int, node: Any) -> None:
    getattr(node, part)[at] = ast.Pass()


def _exchange(part: str, at: int, other: int, node: Any) -> None:
    statements = getattr(node, part)
    statements[at], statements[other] = statements[other], statements[at]


def _turn(node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _replace(field: str, at: int | None, text: str, node: Any) -> None:
    new = ast.parse(text, mode="eval").body
    if at is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[at] = new
