"""COO, ELL and DIA: round trips and exact sizes."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from experiments.epmc.sizes import COO, DIA, ELL
from membench.core.graph.codec import Codec
from tests.helpers.kernels.codecs import activations, nonzeros, same_bits

CODECS: dict[str, Codec] = {"coo": COO(columns=16), "ell": ELL(columns=16), "dia": DIA(columns=16)}


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=60, deadline=None)
@given(tensor=activations())
def test_round_trips_keep_every_bit(name: str, tensor: Tensor) -> None:
    codec = CODECS[name]
    assert same_bits(codec.decode(codec.encode(tensor)), tensor)


@settings(max_examples=60, deadline=None)
@given(tensor=activations())
def test_sizes_follow_the_formulas(tensor: Tensor) -> None:
    flat = tensor.contiguous().view(-1)
    matrix = torch.nn.functional.pad(flat, (0, -len(flat) % 16)).view(torch.int32).view(-1, 16).ne(0)
    rows, columns = matrix.nonzero(as_tuple=True)
    width = int(matrix.sum(1).max()) if len(matrix) else 0
    assert COO(16).encode(tensor).size_bytes == 4 * 3 * nonzeros(tensor)
    assert ELL(16).encode(tensor).size_bytes == 4 * 2 * len(matrix) * width
    assert DIA(16).encode(tensor).size_bytes == 4 * (1 + 16) * len((columns - rows).unique())
