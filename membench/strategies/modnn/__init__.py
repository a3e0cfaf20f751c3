"""moDNN: any budget, planned copies and micro batches."""

from membench.strategies.modnn.strategy import Modnn

__all__ = ["Modnn"]
