"""Images in files, read on demand, so that a data set may be larger than memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from membench.core.errors import MissingDataset
from membench.data.dataset import Dataset, Split
from membench.data.splits import split_each_class


@dataclass(frozen=True)
class Distribution:
    """The source of a data set.

    Attributes:
        download: the archive and its page, as the object of "download".
    """

    name: str
    download: str

    def find(self, root: Path, path: str) -> Path:
        """Return a file or directory of the data set.

        Raises:
            MissingDataset: it is not there.
        """
        if not (root / path).exists():
            raise MissingDataset(self.name, missing=root / path, root=root, download=self.download)
        return root / path


@dataclass(frozen=True)
class ImageFiles:
    """Colour images, each read and scaled to one size on demand.

    The largest square in the middle of an image is scaled to `size_px` bilinearly; grey images get three equal
    channels.
    """

    paths: tuple[Path, ...]
    size_px: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, positions: Tensor, /) -> Tensor:
        return torch.stack([self._read(self.paths[position]) for position in positions.tolist()])

    def _read(self, path: Path) -> Tensor:
        size = (self.size_px, self.size_px)
        with Image.open(path) as image:
            pixels = np.array(ImageOps.fit(image.convert("RGB"), size, Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1)


def split_of_files(paths: Sequence[Path], labels: Sequence[int], size_px: int) -> Split:
    """Return images in files with their labels."""
    return Split(ImageFiles(tuple(paths), size_px), torch.tensor(labels, dtype=torch.int64))


def dataset_of_files(name: str, paths: Sequence[Path], labels: Sequence[int], size_px: int) -> Dataset:
    """Return a data set that comes without a split (see `split_each_class`)."""
    training, test = (
        split_of_files([paths[i] for i in positions], [labels[i] for i in positions], size_px)
        for positions in (chosen.tolist() for chosen in split_each_class(torch.tensor(labels)))
    )
    return Dataset(name, training, test, classes=max(labels) + 1, image_shape=(3, size_px, size_px))
