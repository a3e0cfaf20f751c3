"""The one-bit mask: what a ReLU's backward pass needs, and nothing else."""

import torch
from hypothesis import given, settings
from torch import Tensor

from membench.codecs.mask import BitMask
from membench.execution.measurement import cpu_peak_bytes
from tests.helpers.kernels.codecs import activations


@settings(max_examples=100, deadline=None)
@given(tensor=activations())
def test_the_gradient_of_a_relu_is_the_same_through_the_mask(tensor: Tensor) -> None:
    encoded = BitMask().encode(tensor)
    assert encoded.size_bytes == -(-tensor.numel() // 8) == BitMask().size_bytes(tensor.numel(), 0)
    decoded = BitMask().decode(encoded)
    gradient = torch.randn(tensor.shape)
    backward = torch.ops.aten.threshold_backward.default
    assert torch.equal(backward(gradient, decoded, 0), backward(gradient, tensor, 0))


def test_encoding_into_memory_takes_no_other() -> None:
    source, decoded = torch.randn(1001), torch.empty(1001)
    target = torch.empty(BitMask().size_bytes(1001, 0), dtype=torch.uint8)

    def there_and_back() -> None:
        BitMask().encode_into(source, target)
        BitMask().decode_into(target, decoded)

    there_and_back()
    assert cpu_peak_bytes(there_and_back) == 0
    assert torch.equal(decoded, (source > 0).float())
