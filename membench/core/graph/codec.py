"""Codec: an encoding that keeps an activation of single-precision numbers in fewer bytes."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from membench.core.errors import MembenchError


class EncodingOverflow(MembenchError):
    """An activation has more non-zeros than its encoded form has room for."""

    def __init__(self, elements: int, capacity: int) -> None:
        super().__init__(
            f"more than {capacity:,} of an activation's {elements:,} elements are not zero, a density above "
            f"{capacity / elements:.3f}, for which its encoded form was planned; plan with a higher density"
        )


@dataclass(frozen=True)
class Encoded:
    """One encoded tensor: its bytes, and the shape of the decoded tensor."""

    data: Tensor
    shape: torch.Size

    @property
    def size_bytes(self) -> int:
        return self.data.numel()


class Codec(ABC):
    """One encoding of float32 tensors of any shape, on any device."""

    @abstractmethod
    def encode(self, tensor: Tensor) -> Encoded:
        """Return the encoded tensor.

        Raises:
            MembenchError: not float32, or too large for the encoding's integers.
        """

    @abstractmethod
    def decode(self, encoded: Encoded) -> Tensor:
        """Return the encoded tensor, contiguous and up to the precision in which its values are kept."""


class ActivationCodec(Codec):
    """An encoding whose size follows from the number of non-zeros, so that a schedule can plan memory for it.

    It encodes into memory that the caller provides, and allocates no other device memory.
    """

    host_waits: ClassVar[bool] = False
    """Whether encoding synchronises with the host to detect overflow, which a CUDA graph cannot capture."""

    streams: int = 1
    """Number of streams among which a device divides an activation's rows; used by simulated conversion times only."""

    @property
    @abstractmethod
    def rounding(self) -> float:
        """The largest relative error of a decoded value that is neither tiny nor huge; 0 if the codec is lossless.

        A codec that keeps only what its readers need, such as a sign, counts as lossless.
        """

    @abstractmethod
    def size_bytes(self, elements: int, nonzeros: int) -> int:
        """Return the exact size of an encoded activation with that many elements and non-zeros."""

    @abstractmethod
    def encode_into(self, source: Tensor, target: Tensor) -> None:
        """Encode a one-dimensional tensor into bytes.

        Args:
            source: one-dimensional, float32.
            target: uint8; `size_bytes` of some number of non-zeros.

        Raises:
            EncodingOverflow: the target is too small.
        """

    @abstractmethod
    def decode_into(self, source: Tensor, target: Tensor) -> None:
        """Undo `encode_into`; the source has as many bytes as its target had."""

    def capacity(self, elements: int, size_bytes: int) -> int:
        """Return the most non-zeros for which that many bytes are enough."""
        numbers = range(elements + 1)
        return bisect_right(numbers, size_bytes, key=lambda n: self.size_bytes(elements, n)) - 1

    def encode(self, tensor: Tensor) -> Encoded:
        flat = flatten(tensor)
        nonzeros = int(torch.count_nonzero(flat.view(torch.int32)))
        size_bytes = self.size_bytes(flat.numel(), nonzeros)
        target = torch.empty(size_bytes, dtype=torch.uint8, device=tensor.device)
        self.encode_into(flat, target)
        return Encoded(target, tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        target = torch.empty(encoded.shape.numel(), device=encoded.data.device)
        self.decode_into(encoded.data, target)
        return target.view(encoded.shape)


def flatten(tensor: Tensor) -> Tensor:
    """Return a tensor as a one-dimensional one.

    Raises:
        MembenchError: not float32, or more elements than 32-bit integers can index.
    """
    if tensor.dtype != torch.float32:
        raise MembenchError(f"activations of {tensor.dtype} cannot be encoded; only float32 can")
    if tensor.numel() >= 2**31:
        raise MembenchError(
            f"an activation of {tensor.numel():,} elements is too large for 32-bit row offsets; split it"
        )
    return tensor.detach().contiguous().view(-1)
