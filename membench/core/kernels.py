"""What computes a step on a device."""

from enum import StrEnum


class Kernels(StrEnum):
    """PyTorch's operators one by one, or Inductor's kernels for groups of them."""

    EAGER = "eager"
    INDUCTOR = "inductor"
