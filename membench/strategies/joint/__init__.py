"""Joint: for each stored block keep, offload or recompute, chosen together under a budget, with a lower bound on the time."""

from membench.strategies.joint.strategy import Joint

__all__ = ["Joint"]
