"""Joint: keep, offload or recompute each stored block, chosen together under a budget, with a lower bound."""

from membench.strategies.joint.strategy import Joint

__all__ = ["Joint"]
