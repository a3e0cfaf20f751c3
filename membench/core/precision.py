"""Precision: the number formats of a step's weights, activations and products."""

from enum import StrEnum


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
