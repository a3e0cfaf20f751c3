"""mmCNN: inference under a memory limit."""

from membench.strategies.mmcnn.strategy import Mmcnn

__all__ = ["Mmcnn"]
