"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): clothes in grey, 28x28 pixels, ten classes, with a split of its own.

    train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz

60,000 images train and 10,000 test. The files are those in a directory that the user names, those that Debian's package
``dataset-fashion-mnist`` installed, or those of that package as ``apt-get download`` fetches it, once, into the cache:
it is unpacked and not installed, which any user may do. The content of each file is checked by its SHA-256.

Before the pixels an IDX file has a magic number, whose last byte is the number of dimensions, and the dimensions, all
as big-endian integers of four bytes.
"""

import gzip
import hashlib
import subprocess
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from membench.core.errors import MembenchError, MissingDataset
from membench.core.files import cache_directory
from membench.data.dataset import Dataset, Split
from membench.data.files import Distribution

TRAINING_IMAGES, TEST_IMAGES = 60_000, 10_000
PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Of each file's content, which is the same however it was compressed."""
_FASHION_MNIST = Distribution(
    "Fashion-MNIST",
    f"the four files of Debian's package {PACKAGE} (apt-get download, dpkg-deb --extract), or from "
    "https://github.com/zalandoresearch/fashion-mnist,",
)


def fashion_mnist(
    root: str | None = None, training_images: int = TRAINING_IMAGES, test_images: int = TEST_IMAGES
) -> Dataset:
    """Return the data set.

    Args:
        root: the directory that holds the four files; None: they are found or fetched (see the module).
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
    directory = Path(root) if root is not None else _found_or_fetched()
    training = _read_split(directory, "train", training_images)
    test = _read_split(directory, "t10k", test_images)
    return Dataset("fashion_mnist", training, test, classes=10, image_shape=(1, 28, 28))


def _found_or_fetched() -> Path:
    cache = cache_directory() / "fashion-mnist"
    for directory in (INSTALLED, cache):
        if all((directory / f"{name}.gz").exists() for name in SHA256):
            return directory
    _fetch(cache)
    return cache


def _fetch(directory: Path) -> None:
    """Fetch the package's files; fails with `MissingDataset` where there is no apt, no network or no such package."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory) as temporary:
        unpacked = Path(temporary)
        try:
            _run(["apt-get", "download", PACKAGE], unpacked)
            package = next(unpacked.glob(f"{PACKAGE}_*.deb"))
            _run(["dpkg-deb", "--extract", package.name, "."], unpacked)
            for name in SHA256:
                (unpacked / INSTALLED.relative_to("/") / f"{name}.gz").replace(directory / f"{name}.gz")
        except (OSError, subprocess.CalledProcessError, StopIteration) as error:
            missing = directory / f"{next(iter(SHA256))}.gz"
            raise MissingDataset(
                _FASHION_MNIST.name, missing=missing, root=directory, download=_FASHION_MNIST.download
            ) from error


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def _read_split(directory: Path, prefix: str, count: int) -> Split:
    images, labels = (_read(directory, f"{prefix}-{name}-ubyte")[:count] for name in ("images-idx3", "labels-idx1"))
    return Split(images.unsqueeze(1), labels.to(torch.int64))


def _read(directory: Path, name: str) -> Tensor:
    path = _FASHION_MNIST.find(directory, f"{name}.gz")
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile):
        content = b""
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise MembenchError(
            f"{path} is not the published file, by its SHA-256; remove it, and get {_FASHION_MNIST.download} again"
        )
    return read_idx(content)


def read_idx(content: bytes) -> Tensor:
    """Return the uint8 tensor of an IDX file's content."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8, offset=4 + 4 * dimensions).reshape(shape))
