"""Batches of sequences padded to a few lengths, so that few kinds of calls are captured."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from membench.core.errors import MembenchError


def pad_to_bucket(
    batch: Mapping[str, Any], lengths: Sequence[int], values: Mapping[str, float], *, dim: int = 1
) -> dict[str, Any]:
    """Return a batch whose sequences are padded at their end to the smallest of some lengths that is long enough.

    For `wrap` and for ``compile(..., shapes="any")``, which capture each shape once: in place of one capture for each
    length there is one for each bucket. The network computes on the padding as well, and its outputs have the bucket's
    length. Results are the unpadded batch's, up to rounding, if the attention leaves padding out (a mask of zeros, or
    causal attention), no other layer mixes positions (batch norm does, and dropout draws more numbers), and the loss
    ignores padded targets.

    Args:
        batch: tensors by name, and other values, which stay as they are.
        lengths: lengths of the buckets, in any order.
        values: the number that each tensor is padded with: ``{"input_ids": 0, "attention_mask": 0, "labels": -100}``.
        dim: along which those tensors are sequences.

    Raises:
        MembenchError: a tensor that is to be padded is missing, has no such dimension, or is longer than all buckets.
    """
    if not lengths or min(lengths) < 1:
        raise MembenchError(f"the lengths of buckets are one or more positive numbers, not {lengths!r}")
    padded = dict(batch)
    for name, value in values.items():
        tensor = batch.get(name)
        if not isinstance(tensor, Tensor) or not -tensor.dim() <= dim < tensor.dim():
            what = f"of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)
            raise MembenchError(
                f"{name!r} is to be padded along dimension {dim}, but is {what} in the batch, which has "
                f"{', '.join(batch)}"
            )
        length = tensor.shape[dim]
        fitting = [each for each in lengths if each >= length]
        if not fitting:
            raise MembenchError(
                f"{name!r} has length {length}, and the longest bucket {max(lengths)}; cut it, or add a bucket"
            )
        behind = tensor.dim() - 1 - dim % tensor.dim()
        padded[name] = functional.pad(tensor, [0, 0] * behind + [0, min(fitting) - length], value=value)
    return padded
