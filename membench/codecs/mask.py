"""One bit per element, enough for the backward pass of a ReLU (Gist's Binarize, Jain et al. 2018, 3.1)."""

from dataclasses import dataclass

from torch import Tensor

from membench.codecs.dispatch import kernels
from membench.core.graph.codec import ActivationCodec

_BITS = 8


@dataclass(frozen=True)
class BitMask(ActivationCodec):
    """One bit per element: set where it is above zero or NaN; decodes to ones there and zeros elsewhere.

    Only for activations whose signs alone are read.
    """

    @property
    def rounding(self) -> float:
        return 0.0

    def size_bytes(self, elements: int, nonzeros: int) -> int:
        return -(-elements // _BITS)

    def encode_into(self, source: Tensor, target: Tensor) -> None:
        kernels(source.device, "mask").encode(source, target)

    def decode_into(self, source: Tensor, target: Tensor) -> None:
        kernels(target.device, "mask").decode(source, target)
