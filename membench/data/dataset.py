"""Dataset: labelled images, split into a training set and a test set."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Images(Protocol):
    """Images by position: a tensor in memory, or files that are read on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, positions: Tensor, /) -> Tensor:
        """Return the images at the positions, uint8 of shape (n, channels, height, width)."""
        ...


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their classes.

    Attributes:
        images: uint8, 0 to 255.
        labels: int64 of shape (len(images),), from 0.
    """

    images: Images
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return images as float32 from 0 to 1, and their labels."""
        return self.images[positions].to(torch.float32) / 255, self.labels[positions]


@dataclass(frozen=True, eq=False)
class Dataset:
    """The images on which a network is trained and tested.

    Attributes:
        image_shape: channels, height and width.
    """

    name: str
    training: Split
    test: Split
    classes: int
    image_shape: tuple[int, int, int]
