"""Handwritten digits, 8x8 pixels in grey, which are part of scikit-learn: the default, because nothing is downloaded.

1,797 images of the ten digits: the test part of UCI's "Optical Recognition of Handwritten Digits". Its grey levels,
0 to 16, become 0 to 255. 1,442 images train and 355 test (see `split_each_class`).
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

from membench.data.dataset import Dataset, Split
from membench.data.splits import split_each_class

_LEVELS = 16


def digits() -> Dataset:
    """Return the data set."""
    loaded = load_digits()
    levels = np.rint(loaded.images * (255 / _LEVELS)).astype(np.uint8)
    images, labels = torch.from_numpy(levels).unsqueeze(1), torch.from_numpy(loaded.target.astype(np.int64))
    training, test = (Split(images[chosen], labels[chosen]) for chosen in split_each_class(labels))
    return Dataset("digits", training, test, classes=10, image_shape=(1, 8, 8))
