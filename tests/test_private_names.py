"""torch's private API is used in four modules of `membench/core` alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import membench

PACKAGE = Path(membench.__file__).parent

OTHERS_ATTRIBUTES = {"_replace", "_make", "_asdict", "_fields", "_USE_PSUTIL"}
"""Underscored names that are not torch's: public ones of a `NamedTuple`, and a switch of joblib."""

CHECKED_STRINGS = {name for kind in (Tensor, nn.Module(), torch.UntypedStorage) for name in dir(kind)}
"""Attributes of torch's objects, which `getattr` and the like could name in a string."""


def private_names(source: str) -> Iterator[str]:
    """Yield torch's private names in a module: in imports, attributes and strings."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "torch":
                yield from (f"{module}.{a.name}" for a in names if is_private(f"{module}.{a.name}"))
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.startswith("torch.") and is_private(a.name))
            case ast.Attribute(value=value, attr=attr) if is_private(attr) and attr not in OTHERS_ATTRIBUTES:
                owner = ast.unparse(value)
                if owner not in ("self", "cls", "super()"):
                    yield f"{owner}.{attr}"
            case ast.Constant(value=str(text)):
                if text.startswith("torch._") or (is_private(text) and text in CHECKED_STRINGS):
                    yield text


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


NAMING = {f"torch_{name}.py" for name in ("contexts", "devices", "fake_tensors", "inductor", "internals")}


def test_no_other_module_names_a_private_attribute_of_torch() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if path.name not in NAMING and (names := list(private_names(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._C",
        "from torch.utils._pytree import tree_leaves",
        "from torch.cuda import _POOL_HANDLE",
        "torch._C._cuda_clearCublasWorkspaces()",
        "tensor.untyped_storage()._cdata",
        "attrgetter('_backward_hooks')",
        "logging.getLogger('torch._subclasses.fake_tensor')",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    assert list(private_names(source))
