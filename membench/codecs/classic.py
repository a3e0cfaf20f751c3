"""COO, ELL and DIA: what EPMC compares the sizes of VPEncoding and CSR with (Section 5.5, Figure 13).

All lay a map's elements out as a matrix of 256 columns, its last row filled up with zeros, and use 32-bit numbers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from membench.codecs.dispatch import kernels
from membench.core.codec import Codec, Encoded, flatten


@dataclass(frozen=True)
class _Matrix(Codec):
    columns: int = 256
    name: ClassVar[str]

    def encode(self, tensor: Tensor) -> Encoded:
        flat = flatten(tensor).view(torch.int32)
        missing = self._rows(flat.numel()) * self.columns - flat.numel()
        matrix = (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, self.columns)
        return Encoded(self._kernel("encode", tensor.device)(matrix), tensor.shape)

    def decode(self, encoded: Encoded) -> Tensor:
        """Return the tensor that was encoded; its last row's fill is cut off."""
        elements, device = encoded.shape.numel(), encoded.data.device
        matrix = torch.empty(self._rows(elements), self.columns, dtype=torch.int32, device=device)
        self._kernel("decode", device)(encoded.data, matrix)
        return matrix.view(-1)[:elements].view(torch.float32).view(encoded.shape)

    def _rows(self, elements: int) -> int:
        return -(-elements // self.columns)

    def _kernel(self, verb: str, device: torch.device) -> Any:
        return getattr(kernels(device, "classic"), f"{verb}_{self.name}")


@dataclass(frozen=True)
class COO(_Matrix):
    """Row, column and value of each element that is not zero: 12 bytes."""

    name = "coo"


@dataclass(frozen=True)
class ELL(_Matrix):
    """Columns and values of each row, as many in all rows as in the fullest; the rest is marked by column -1."""

    name = "ell"


@dataclass(frozen=True)
class DIA(_Matrix):
    """Each diagonal that is not all zero, as long as a row, after its number."""

    name = "dia"
