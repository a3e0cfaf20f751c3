"""Recipe: how a network is trained to accuracy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, whatever the strategy.

    The learning rate stays what it is; weights decay with the gradient (L2). The last batch of an epoch is smaller
    where the images do not divide: none is left out.

    Attributes:
        seed: of the order of the images and of dropout.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    seed: int
