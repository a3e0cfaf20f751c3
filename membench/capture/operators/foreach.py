"""Operators on lists of tensors: the kernels that they launch on a GPU.

One kernel takes several tensors, each cut into chunks of 65,536 elements: as many tensors as its arguments have room
for, and at most 320 chunks (PyTorch's ``aten/src/ATen/native/cuda/MultiTensorApply.cuh``).
"""

from typing import Any

from torch import Tensor

from membench.core.libraries.torch_internals import OpOverload, tree_leaves

_CHUNK_ELEMENTS = 65_536
_MOST_CHUNKS = 320
_MOST_TENSORS = (110, 64, 48, 36, 30)
"""Of each list in one kernel, by the number of lists."""


def kernel_launches(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the kernels of an operator; one that is not on lists has one."""
    lists = [each for each in (*args, *kwargs.values()) if isinstance(each, list | tuple) and any(
        isinstance(leaf, Tensor) for leaf in each)]  # fmt: skip
    if not lists or not operator.overloadpacket.__name__.startswith(("_foreach_", "_fused_")):
        return 1
    most_tensors = _MOST_TENSORS[min(len(lists), len(_MOST_TENSORS)) - 1]
    launches = tensors = chunks = 0
    for tensor in tree_leaves(lists[0]):
        left = max(1, -(-tensor.numel() // _CHUNK_ELEMENTS))
        tensors += 1
        while left:
            taken = min(left, _MOST_CHUNKS - chunks)
            chunks, left = chunks + taken, left - taken
            if chunks == _MOST_CHUNKS or (tensors == most_tensors and not left):
                launches, chunks, tensors = launches + 1, 0, int(bool(left))
    return launches + bool(chunks)
