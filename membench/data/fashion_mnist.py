"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): clothes in grey, 28x28 pixels, ten classes, with a split of its own.

    fashion-mnist/train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz       60,000 images
    fashion-mnist/t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz         10,000 images

The files are those of a directory that the user names, those that Debian's package ``dataset-fashion-mnist`` installed,
or those of that package as ``apt-get download`` fetches it, once, into the cache: it is unpacked and not installed,
which any user may do. The content of each file is checked by its SHA-256.

Before its values an IDX file has four bytes, the last of which is the number of dimensions, and the dimensions, as
big-endian integers of four bytes.
"""

import gzip
import hashlib
import subprocess
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from membench.core.errors import MembenchError
from membench.core.files import cache_directory
from membench.data.dataset import Dataset, Split
from membench.data.files import Distribution

TRAINING_IMAGES, TEST_IMAGES = 60_000, 10_000
FOLDER = "fashion-mnist"
PACKAGE = "dataset-fashion-mnist"
IN_PACKAGE = "usr/share/datasets"
INSTALLED = Path("/") / IN_PACKAGE
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Hashes of the files' contents, which are the same however they were compressed."""
_FETCH = ("apt-get", "download", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20", PACKAGE)
_FASHION_MNIST = Distribution("Fashion-MNIST", f"the package {PACKAGE} of Debian (apt-get download {PACKAGE})")


def fashion_mnist(
    root: str | None = None, training_images: int = TRAINING_IMAGES, test_images: int = TEST_IMAGES
) -> Dataset:
    """Return the data set.

    Args:
        root: the directory that holds ``fashion-mnist``; None: it is found or fetched (see the module).
        training_images: the first that many train.
        test_images: the first that many test.

    Raises:
        MissingDataset: a file is not there, and could not be fetched.
        MembenchError: there are not so many images, or a file is not the published one.
    """
    for name, count, most in (
        ("training_images", training_images, TRAINING_IMAGES),
        ("test_images", test_images, TEST_IMAGES),
    ):
        if not 1 <= count <= most:
            raise MembenchError(f"{name} is {count}, and Fashion-MNIST has {most}; choose a number from 1 to {most}")
    directory = _found_or_fetched() if root is None else Path(root)
    training, test = _read_split(directory, "train", training_images), _read_split(directory, "t10k", test_images)
    return Dataset("fashion_mnist", training, test, classes=10, image_shape=(1, 28, 28))


def _found_or_fetched() -> Path:
    """Return a directory that holds the files, into which they are fetched if they are nowhere."""
    for root in (INSTALLED, cache_directory()):
        if all((root / FOLDER / f"{name}.gz").exists() for name in SHA256):
            return root
    with suppress(OSError, subprocess.CalledProcessError, StopIteration):  # no apt, no network, no such package
        _fetch(cache_directory() / FOLDER)
    return cache_directory()


def _fetch(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory) as temporary:
        unpacked = Path(temporary)
        subprocess.run(_FETCH, cwd=unpacked, check=True, capture_output=True)
        package = next(unpacked.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(("dpkg-deb", "--extract", package.name, "."), cwd=unpacked, check=True, capture_output=True)
        for name in SHA256:
            path = unpacked / IN_PACKAGE / FOLDER / f"{name}.gz"
            path.replace(directory / path.name)


def _read_split(root: Path, prefix: str, count: int) -> Split:
    images, labels = (_read(root, f"{prefix}-{name}-ubyte")[:count] for name in ("images-idx3", "labels-idx1"))
    return Split(images.unsqueeze(1), labels.to(torch.int64))


def _read(root: Path, name: str) -> Tensor:
    path = _FASHION_MNIST.find(root, f"{FOLDER}/{name}.gz")
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile):
        content = b""
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise MembenchError(
            f"{path} is not the published file, by its SHA-256; remove it, and download {_FASHION_MNIST.download} again"
        )
    return _read_idx(content)


def _read_idx(content: bytes) -> Tensor:
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8, offset=4 + 4 * dimensions).reshape(shape))
