"""Precision: the number formats of a step's weights, activations and products."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch takes seconds, which the command line's checks need not wait for
    import torch


class Precision(StrEnum):
    """The formats in which a step computes.

    In the first four everything has one format; the last two are torch's autocast: weights stay in single precision, and
    autocast's lists say which operators run in half precision.
    """

    FP32 = "fp32"
    TF32 = "tf32"  # single precision in memory; products round their factors to 10 bits of mantissa (Ampere and later)
    BF16 = "bf16"
    FP16 = "fp16"
    AMP_BF16 = "amp_bf16"
    AMP_FP16 = "amp_fp16"

    @classmethod
    def of_dtype(cls, dtype: "torch.dtype") -> "Precision":
        """Return the precision of elements of a dtype; that of integers and of double precision is single precision."""
        import torch

        return {torch.bfloat16: cls.BF16, torch.float16: cls.FP16}.get(dtype, cls.FP32)

    @property
    def dtype(self) -> "torch.dtype | None":
        """Dtype of weights, buffers and inputs; None under autocast, which leaves them as they are."""
        import torch

        single, half = torch.float32, {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
        return {Precision.FP32: single, Precision.TF32: single, **half}.get(self)

    @property
    def autocast_dtype(self) -> "torch.dtype | None":
        """Dtype that autocast casts to; None without autocast."""
        import torch

        return {Precision.AMP_BF16: torch.bfloat16, Precision.AMP_FP16: torch.float16}.get(self)
