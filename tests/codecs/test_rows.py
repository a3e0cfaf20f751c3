"""CSR and VPEncoding: round trips, exact sizes, legal widths, no memory but the caller's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from membench.codecs.rows import CompressedRows, csr, vp_encoding
from membench.core.errors import MembenchError
from membench.core.graph.codec import EncodingOverflow
from membench.execution.measurement import cpu_peak_bytes
from tests.helpers.kernels.codecs import activations, nonzeros, same_bits

LOSSLESS = {
    "csr": csr(),
    "csr, odd columns": csr(columns=7),
    "vp": vp_encoding(values="fp32"),
    "vp, fewer columns": vp_encoding(values="fp32", columns=255),
    "vp, short blocks": vp_encoding(values="fp32", columns=15, row_offsets="uint8"),
    "vp, few columns": vp_encoding(values="fp32", columns=4, row_offsets="uint8"),
}
FORMATS = ("fp32", "fp16", "fp10", "fp8")


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=60, deadline=None)
@given(tensor=activations())
def test_lossless_round_trips_keep_every_bit(name: str, tensor: Tensor) -> None:
    codec = LOSSLESS[name]
    encoded = codec.encode(tensor)
    assert codec.rounding == 0
    assert same_bits(codec.decode(encoded), tensor)
    assert encoded.size_bytes == codec.size_bytes(tensor.numel(), nonzeros(tensor))


@pytest.mark.parametrize("values", FORMATS)
@settings(max_examples=60, deadline=None)
@given(tensor=activations(special=False), columns=st.integers(1, 256))
def test_decoded_values_have_the_precision_of_their_format(values: str, tensor: Tensor, columns: int) -> None:
    codec = vp_encoding(values=values, columns=columns)
    encoded = codec.encode(tensor)
    decoded = codec.decode(encoded)
    assert encoded.size_bytes == codec.size_bytes(tensor.numel(), nonzeros(tensor))
    normal = tensor.abs() > 2.0**-6  # FP8's smallest normal number
    assert bool(((decoded - tensor).abs() <= codec.rounding * tensor.abs())[normal].all())
    assert bool((decoded[tensor == 0] == 0).all())


def test_encoded_sizes_follow_the_formula_of_the_paper() -> None:
    """Bytes of a non-zero: 3 with FP16; of CSR 8. Two bytes a row, and four for each block of 255 rows."""
    elements, rows = 256 * 1000, 1000
    assert vp_encoding().size_bytes(elements, 500) == 3 * 500 + 2 * rows + 4 * 4
    assert vp_encoding(values="fp8").size_bytes(elements, 500) == 2 * 500 + 2 * rows + 4 * 4
    assert vp_encoding(values="fp10").size_bytes(elements, 501) == 501 + 5 * 126 + 2 * rows + 4 * 4
    assert csr().size_bytes(elements, 500) == 8 * 500 + 4 * (rows + 1)


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("values", FORMATS)
def test_activations_of_many_blocks(values: str, density: float) -> None:
    """An activation with more non-zeros than UINT16 counts, of rows that end within a packed group of FP10."""
    tensor = torch.randint(1, 16, (3, 431, 257)).float()
    tensor[torch.rand(tensor.shape) >= density] = 0.0
    codec = vp_encoding(values=values)
    assert same_bits(codec.decode(codec.encode(tensor)), tensor)


@pytest.mark.parametrize(
    ("values", "number", "kept"),
    [
        ("fp16", 65504.0, 65504.0),
        ("fp16", 65520.0, math.inf),
        ("fp16", 2.0**-24, 2.0**-24),
        ("fp16", 2.0**-26, 0.0),
        ("fp16", -math.inf, -math.inf),
        ("fp16", math.nan, math.nan),
        ("fp10", 63488.0, 63488.0),
        ("fp10", 65000.0, math.inf),
        ("fp10", 1 + 1 / 32, 1.0),  # ties to even
        ("fp10", 1 + 3 / 32, 1 + 1 / 8),
        ("fp10", -(1 + 3 / 64), -(1 + 1 / 16)),
        ("fp10", 2.0**-18, 2.0**-18),
        ("fp10", -math.inf, -math.inf),
        ("fp10", math.nan, math.nan),
        ("fp8", 448.0, 448.0),
        ("fp8", 500.0, 448.0),
        ("fp8", -math.inf, -448.0),
        ("fp8", math.nan, math.nan),
        ("fp8", 1 + 1 / 16, 1.0),
        ("fp8", -(2.0**-9), -(2.0**-9)),
    ],
)
def test_numbers_at_the_edges_of_a_format(values: str, number: float, kept: float) -> None:
    codec = vp_encoding(values=values)
    [decoded] = codec.decode(codec.encode(torch.tensor([number]))).tolist()
    assert decoded == kept or (math.isnan(decoded) and math.isnan(kept))


def test_fp10_keeps_a_nan_of_any_payload() -> None:
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000], dtype=torch.int32)
    codec = vp_encoding(values="fp10")
    assert bool(codec.decode(codec.encode(bits.view(torch.float32))).isnan().all())


@pytest.mark.parametrize(
    "options",
    [
        {"columns": 257},
        {"columns": 0},
        {"columns": 256, "row_offsets": "uint8"},
        {"values": "fp12"},
        {"row_offsets": "uint4"},
    ],
)
def test_illegal_widths_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(MembenchError):
        vp_encoding(**options)  # type: ignore[arg-type]


def test_only_float32_is_encoded() -> None:
    with pytest.raises(MembenchError, match="float32"):
        csr().encode(torch.ones(3, dtype=torch.float64))


@settings(max_examples=200, deadline=None)
@given(
    elements=st.integers(0, 300_000), part=st.floats(0, 1), values=st.sampled_from(FORMATS), columns=st.integers(1, 256)
)
def test_capacity_inverts_the_size(elements: int, part: float, values: str, columns: int) -> None:
    codec = vp_encoding(values=values, columns=columns)
    count = round(part * elements)
    assert codec.capacity(elements, codec.size_bytes(elements, count)) == count


def test_an_encoding_that_does_not_fit_is_refused() -> None:
    codec = vp_encoding()
    source = torch.ones(1000)
    target = torch.empty(codec.size_bytes(1000, 400), dtype=torch.uint8)
    with pytest.raises(EncodingOverflow, match=r"more than 400 of an activation's 1,000 .* above 0\.400"):
        codec.encode_into(source, target)


@pytest.mark.parametrize("codec", [csr(), csr(columns=100), *(vp_encoding(values=v) for v in FORMATS)], ids=str)
def test_encoding_into_memory_takes_no_other(codec: CompressedRows) -> None:
    source = torch.randn(150_000).relu()
    count = source.numel()
    target = torch.empty(codec.size_bytes(count, 100_000), dtype=torch.uint8)  # more room than needed
    decoded = torch.empty(count)

    def there_and_back() -> None:
        codec.encode_into(source, target)
        codec.decode_into(target, decoded)

    there_and_back()
    assert cpu_peak_bytes(there_and_back) == 0
    assert bool(((decoded - source).abs() <= codec.rounding * source + 2.0**-9).all())
