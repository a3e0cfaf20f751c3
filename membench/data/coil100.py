"""COIL-100 (Nene, Nayar, Murase 1996): 100 objects in colour, 128x128 pixels, each seen from 72 sides.

    coil-100/obj1__0.png, obj1__5.png ... obj100__355.png      the number after __ is the angle in degrees

It has no split of its own: see `split_each_class`; the sides of an object are in the order of their angles.
"""

import re
from pathlib import Path

from membench.data.dataset import Dataset
from membench.data.files import Distribution, dataset_of_files

_SIZE_PX = 128
_COIL100 = Distribution("COIL-100", "coil-100.zip from https://www.cs.columbia.edu/CAVE/software/softlib/coil-100.php")


def coil100(root: str) -> Dataset:
    """Return the data set.

    Args:
        root: the directory that holds ``coil-100``.

    Raises:
        MissingDataset: it is not there.
    """
    directory = _COIL100.find(Path(root), "coil-100/obj1__0.png").parent
    found = (re.fullmatch(r"obj(\d+)__(\d+)\.png", path.name) for path in directory.iterdir())
    sides = sorted((int(match[1]), int(match[2])) for match in found if match)
    paths = [directory / f"obj{number}__{angle}.png" for number, angle in sides]
    return dataset_of_files("coil100", paths, [number - 1 for number, _ in sides], _SIZE_PX)
