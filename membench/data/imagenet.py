"""ImageNet (ILSVRC2012, Russakovsky et al. 2015) as folders of images, a folder per class in either split.

    train/n01440764/n01440764_10026.JPEG ...
    val/n01440764/ILSVRC2012_val_00000293.JPEG ...

The training archive holds one archive per class; the validation images are in one folder, and have to be sorted into
folders by the ground truth of the development kit. They are the test images here. Classes are numbered in the order of
the folders' names.
"""

from pathlib import Path

from membench.core.errors import MembenchError
from membench.data.dataset import Dataset, Split
from membench.data.files import Distribution, split_of_files

_IMAGENET = Distribution("ImageNet", "the images of ILSVRC2012 from https://image-net.org (an account is needed)")


def imagenet(root: str, size_px: int) -> Dataset:
    """Return the data set.

    Args:
        root: the directory that holds ``train`` and ``val``.
        size_px: height and width to which images are brought (see `ImageFiles`).

    Raises:
        MissingDataset: one of the two is not there.
        MembenchError: the images are not in folders, or the two do not have the same classes.
    """
    train, val = (_IMAGENET.find(Path(root), name) for name in ("train", "val"))
    training, test = _by_class(train), _by_class(val)
    if not training or training.keys() != test.keys():
        raise MembenchError(
            f"{train} and {val} have {len(training)} and {len(test)} folders of classes with images; "
            "sort the images of each class into a folder with its WordNet name, such as n01440764, in both"
        )
    return Dataset(
        "imagenet",
        _split(training, size_px),
        _split(test, size_px),
        classes=len(training),
        image_shape=(3, size_px, size_px),
    )


def _by_class(directory: Path) -> dict[str, list[Path]]:
    """Return the images of each class that has any, in the order of their names."""
    found = {folder.name: sorted(folder.glob("*.JPEG")) for folder in sorted(directory.glob("n*"))}
    return {name: paths for name, paths in found.items() if paths}


def _split(found: dict[str, list[Path]], size_px: int) -> Split:
    labelled = [(path, label) for label, paths in enumerate(found.values()) for path in paths]
    return split_of_files([path for path, _ in labelled], [label for _, label in labelled], size_px)
