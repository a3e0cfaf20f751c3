"""What computes a step on a device."""

from dataclasses import dataclass
from enum import StrEnum


class Kernels(StrEnum):
    """PyTorch's operators one by one, or Inductor's kernels for groups of them."""

    EAGER = "eager"
    INDUCTOR = "inductor"


@dataclass(frozen=True)
class Compiled:
    """What of a step was given to `torch.compile`.

    Attributes:
        modules: paths of modules, each compiled with those inside it; ``""`` is the whole module.
        loss: the loss was, too.
        keeps_layout: images stay as they are; otherwise they become channels last where Inductor decides so.
        unpredicted: a sentence for each option of the compiler that changes the step, and is not predicted.
    """

    modules: tuple[str, ...]
    loss: bool = False
    keeps_layout: bool = False
    unpredicted: tuple[str, ...] = ()

    def around(self, path: str) -> str | None:
        """Return the outermost compiled module that contains a layer; None: none does."""
        return min((module for module in self.modules if is_inside(path, module)), key=len, default=None)


WHOLE_STEP = Compiled(("",), loss=True)


def is_inside(path: str, module: str) -> bool:
    """Return whether a layer is a module or a part of it, by their paths."""
    return not module or path == module or path.startswith(f"{module}.")
