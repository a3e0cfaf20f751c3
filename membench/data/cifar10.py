"""CIFAR-10 as its authors distribute it for Python (Krizhevsky 2009): pickled batches, with a split of its own.

    cifar-10-batches-py/data_batch_1 ... data_batch_5, test_batch

Each batch is a dictionary whose keys are bytes: ``b"data"`` has a row of 3,072 bytes for each image, red then green
then blue; ``b"labels"`` is a list.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from membench.core.errors import MembenchError, one_line
from membench.data.dataset import Dataset, Split
from membench.data.files import Distribution

_SHAPE = (3, 32, 32)
_CLASSES = 10
_TRAINING = [f"data_batch_{number}" for number in range(1, 6)]
_CIFAR10 = Distribution("CIFAR-10", "cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html")


def cifar10(root: str) -> Dataset:
    """Return the data set.

    Args:
        root: the directory that holds ``cifar-10-batches-py``.

    Raises:
        MissingDataset: one of the batches is not there.
        MembenchError: a file is not such a batch.
    """
    training, test = _read(Path(root), _TRAINING), _read(Path(root), ["test_batch"])
    return Dataset("cifar10", training, test, classes=_CLASSES, image_shape=_SHAPE)


def _read(root: Path, names: list[str]) -> Split:
    batches = [_read_batch(_CIFAR10.find(root, f"cifar-10-batches-py/{name}")) for name in names]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return Split(images, labels)


def _read_batch(path: Path) -> tuple[Tensor, Tensor]:
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images = np.frombuffer(bytearray(content[b"data"].content), np.uint8).reshape(-1, *_SHAPE)
        labels = [int(label) for label in content[b"labels"]]
        if len(labels) != len(images) or not set(labels) <= set(range(_CLASSES)):
            raise ValueError(f"{len(images)} images have {len(labels)} labels, or other labels than 0 to 9")
    except Exception as error:  # a damaged pickle may raise any
        raise MembenchError(
            f"{path} is not a batch of CIFAR-10 ({one_line(error)}); download {_CIFAR10.download} again"
        ) from error
    return torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64)


class _Stored:
    """Stands for all objects in a pickle that are not plain values: keeps the bytes of an array, and does nothing."""

    content = b""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *_, self.content = state


class _Unpickler(pickle.Unpickler):
    """Reads plain values and the bytes of arrays, and calls nothing: a pickle may name any function of this machine."""

    def find_class(self, module: str, name: str) -> type[_Stored]:
        if not module.startswith("numpy") or name not in ("_reconstruct", "ndarray", "dtype"):
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return _Stored
