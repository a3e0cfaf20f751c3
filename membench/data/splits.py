"""Training and test images of a data set that comes without such a split."""

import torch
from torch import Tensor

TEST_EVERY = 5
"""Every fifth image of a class, in the files' order, is for tests: our choice, as the data sets have no split."""


def split_each_class(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the training images and those of the test images, both ascending.

    Args:
        labels: the class of each image, in the data set's own order.
    """
    tests = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        tests[(labels == label).nonzero()[TEST_EVERY - 1 :: TEST_EVERY]] = True
    return (~tests).nonzero().flatten(), tests.nonzero().flatten()
