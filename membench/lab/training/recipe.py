"""Recipe: the hyperparameters of a training, the same for every strategy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of stochastic gradient descent with momentum.

    The learning rate is constant, and weight decay is L2, added to the gradient. Every image is used: the last batch of
    an epoch is smaller where the batch size does not divide their number.

    Attributes:
        seed: seed of the order of the images and of dropout.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    seed: int
