"""CIFAR-10 as its authors distribute it for Python (Krizhevsky 2009): pickled batches, with a split of its own.

    cifar-10-batches-py/data_batch_1 ... data_batch_5, test_batch

Each batch is a dictionary whose keys are bytes: ``b"data"`` has a row of 3,072 bytes for each image, red then green then
blue; ``b"labels"`` is a list.
"""

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from membench.core.dataset import Dataset, Split
from membench.core.errors import MembenchError
from membench.data.files import Distribution

_SHAPE = (3, 32, 32)
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
    return Dataset("cifar10", training, test, classes=10, image_shape=_SHAPE)


def _read(root: Path, names: list[str]) -> Split:
    batches = [_unpickle(_CIFAR10.find(root, f"cifar-10-batches-py/{name}")) for name in names]
    images = np.concatenate([np.asarray(batch[b"data"], np.uint8).reshape(-1, *_SHAPE) for batch in batches])
    labels = [label for batch in batches for label in batch[b"labels"]]
    return Split(torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64))


def _unpickle(path: Path) -> dict[bytes, Any]:
    try:
        content: dict[bytes, Any] = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise MembenchError(
            f"{path} is not a batch of CIFAR-10 ({error}); download {_CIFAR10.download} again"
        ) from error
    return content


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays only: an arbitrary pickle may call any function of this machine."""

    _allowed: ClassVar[dict[str, Any]] = {
        "_reconstruct": np.empty(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith("numpy") or name not in self._allowed:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return self._allowed[name]
