"""MXNet memonger: recompute about sqrt(n) segments."""

from membench.strategies.memonger.strategy import Memonger

__all__ = ["Memonger"]
