"""Nodes of autograd's graph behind a loss."""

from collections import Counter
from typing import Any

from torch import Tensor


def autograd_nodes(loss: Tensor) -> Counter[Any]:
    """Return the nodes of the backward pass, and the number of gradients that each receives."""
    stack: list[Any] = [loss.grad_fn]
    uses = Counter(stack)
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None:
                if following not in uses:
                    stack.append(following)
                uses[following] += 1
    return uses
