"""Nodes of autograd's graph behind a loss or outputs."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor


def autograd_nodes(roots: Iterable[Tensor]) -> Counter[Any]:
    """Return these tensors' nodes of the backward pass, leaves excluded, with the number of gradients of each."""
    stack: list[Any] = list(dict.fromkeys(root.grad_fn for root in roots if root.grad_fn is not None))
    uses = Counter(stack)
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None:
                if following not in uses:
                    stack.append(following)
                uses[following] += 1
    return uses
