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
    """

    modules: tuple[str, ...]
    loss: bool = False
