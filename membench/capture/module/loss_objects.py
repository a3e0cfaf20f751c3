"""Objects that a loss function refers to, such as a `GradScaler`: a trace must not leave its tensors in them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import FakeTensor


@contextmanager
def loss_objects_kept(loss: Callable[..., Any] | None) -> Iterator[None]:
    """Restore the attributes of what a loss refers to.

    Raises:
        UnsupportedModel: an object keeps a tensor that it has made.
    """
    before = [(name, attributes, dict(attributes)) for name, attributes in _referred(loss)]
    kept = ""
    try:
        yield
    finally:
        for name, attributes, earlier in before:
            for attribute, value in [*attributes.items()]:
                if isinstance(value, FakeTensor) and earlier.get(attribute) is not value:
                    kept = f"{name}.{attribute}"
                    if attribute in earlier:
                        attributes[attribute] = earlier[attribute]
                    else:
                        del attributes[attribute]
    if kept:
        raise UnsupportedModel(
            "loss",
            f"{kept} is a tensor that it makes when it is first called, and keeps",
            "call the loss once on a batch before, as a training loop does",
        )


def _referred(loss: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a loss and those that its function names, as dicts of attributes."""
    if isinstance(loss, nn.Module):
        yield from ((path or "loss", vars(layer)) for path, layer in loss.named_modules())
    elif isinstance(loss, partial):
        for each in (loss.func, *loss.args, *loss.keywords.values()):
            yield from _referred(each)
    elif isinstance(loss, MethodType):
        yield from _referred(loss.__self__)
        yield from _referred(loss.__func__)
    elif isinstance(loss, FunctionType):
        code = loss.__code__
        named = {name: loss.__globals__[name] for name in code.co_names if name in loss.__globals__}
        cells = zip(code.co_freevars, loss.__closure__ or (), strict=True)
        named |= {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        yield from ((name, vars(value)) for name, value in named.items() if _has_attributes(value))
    elif _has_attributes(loss):
        yield type(loss).__name__, vars(loss)


def _has_attributes(value: Any) -> bool:
    return type(getattr(value, "__dict__", None)) is dict and not isinstance(value, ModuleType)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
