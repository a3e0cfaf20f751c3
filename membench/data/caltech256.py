"""Caltech-256 (Griffin, Holub, Perona 2007): photographs of 256 categories, of any size.

    256_ObjectCategories/001.ak47/001_0001.jpg ... 256.toad/256_0108.jpg

It has no split of its own: see `split_each_class`. Category 257, clutter, is background and left out, as are the few
files in the folders that are not images of the category.
"""

from pathlib import Path

from membench.data.dataset import Dataset
from membench.data.files import Distribution, dataset_of_files

_CLUTTER = "257.clutter"
_CALTECH256 = Distribution("Caltech-256", "256_ObjectCategories.tar from https://data.caltech.edu/records/nyy15-4j048")


def caltech256(root: str, size_px: int) -> Dataset:
    """Return the data set.

    Args:
        root: the directory that holds ``256_ObjectCategories``.
        size_px: height and width to which images are brought (see `ImageFiles`).

    Raises:
        MissingDataset: it is not there.
    """
    first = _CALTECH256.find(Path(root), "256_ObjectCategories/001.ak47/001_0001.jpg")
    categories = sorted(first.parents[1].glob("[0-9][0-9][0-9].*"))
    paths = [
        path
        for category in categories
        if category.name != _CLUTTER
        for path in sorted(category.glob(f"{category.name[:3]}_*.jpg"))
    ]
    return dataset_of_files("caltech256", paths, [int(path.name[:3]) - 1 for path in paths], size_px)
