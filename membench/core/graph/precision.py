"""Precision: the number formats of a step's weights, activations and products."""

from enum import StrEnum
from typing import TYPE_CHECKING

from membench.core.checks import choice
from membench.core.errors import MembenchError
from membench.core.spelling import precision_named

if TYPE_CHECKING:  # torch takes seconds, which the command line's checks need not wait for
    import torch


class Precision(StrEnum):
    """The formats in which a step computes.

    In the first four everything has one format; the next two are torch's autocast: weights stay in single precision,
    and autocast's lists say which operators run in half precision. The last two are only of single products' factors.
    """

    FP32 = "fp32"
    TF32 = "tf32"  # single precision in memory; products round their factors to 10 bits of mantissa (Ampere and later)
    BF16 = "bf16"
    FP16 = "fp16"
    AMP_BF16 = "amp_bf16"
    AMP_FP16 = "amp_fp16"
    FP8 = "fp8"
    INT8 = "int8"

    @classmethod
    def of_step(cls, value: object) -> "Precision":
        """Return the precision of a step by its name, or by another one's for it; see `precision_named`.

        Raises:
            MembenchError: there is no such precision, or it is only of products.
        """
        value = precision_named(value)
        if value == cls.FP8:
            raise MembenchError(
                "precision is not fp8, in which only a module's products compute: convert it with "
                "torchao.float8.convert_to_float8_training(module), and leave precision out"
            )
        if isinstance(value, str) and value in _OF_WEIGHTS:
            raise MembenchError(
                f"precision is not {value}, which only weights have: quantize the module, on the command line by "
                "model.quantization=bnb.nf4 or bnb.int8, and leave precision out"
            )
        return choice(OF_STEPS, "precision", value)

    @classmethod
    def of_dtype(cls, dtype: "torch.dtype") -> "Precision":
        """Return the precision of elements of a dtype; that of integers and of double precision is single precision."""
        import torch

        if dtype.is_floating_point and dtype.itemsize == 1:
            return cls.FP8
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


OF_STEPS = tuple(each for each in Precision if each not in (Precision.FP8, Precision.INT8))
"""Precisions of steps; the others are of products alone."""
_OF_WEIGHTS = frozenset({"int8", "int4", "nf4", "fp4"})


def as_dtype(dtype: "torch.dtype | str | None", name: str) -> "torch.dtype | None":
    """Return a dtype that is given as such or by the name of a precision.

    Raises:
        MembenchError: there is no such precision, or it is autocast's, which has several; names the argument.
    """
    found = Precision.of_step(dtype).dtype if isinstance(dtype, str) else dtype
    if isinstance(dtype, str) and found is None:
        raise MembenchError(f"{name} is one of fp32, bf16, fp16, not {dtype!r}")
    return found
