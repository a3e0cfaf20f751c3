"""The kernel of attention is the one that the installed torch's own compiled code chooses, on cards that are not there.

`tests/helpers/cuda_runtime` puts a CUDA runtime before torch's that names an architecture and runs nothing; torch's
library for CUDA then runs `select_sdp_backend` as on that card. It needs a torch that was built for CUDA, and a C++
compiler.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch

from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.operators.attention_kernels import AttentionCall, attention_kernel
from membench.core import configuration
from membench.core.errors import MembenchError
from tests.helpers.cuda_runtime import Case, Layout, choices_of_torch, headers, set_switches

CUDNN_FIRST = ["9.0", "10.0", "10.3"]
OTHERS = ["3.5", "5.2", "6.0", "7.0", "7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]

ONE_SWITCH = tuple(tuple(each == at for each in range(4)) for at in range(4))
ALL = (True,) * 4


@pytest.fixture(autouse=True)
def switches_restored() -> Iterator[None]:
    yield
    set_switches(ALL)


def table() -> Iterator[Case]:
    """Yield every format, size of heads, mask, direction and switch that torch's conditions name."""
    sizes = [(192, 128), *((each, each) for each in (64, 66, 68, 128, 192, 200, 224, 256, 264))]
    for dtype, (size, of_value), is_masked, grad in product(
        ("float16", "bfloat16", "float32", "float64"), sizes, (False, True), (False, True)
    ):
        query = Layout((2, 4, 16, size), dtype, grad)
        value = Layout((2, 4, 16, of_value), dtype, grad)
        mask = Layout((16, 16), "bool") if is_masked else None
        for dropout in (0.0, 0.1):
            yield Case(query, query, value, mask, dropout)
        yield from (Case(query, query, value, mask, switches=each) for each in ONE_SWITCH)


def drawn(count: int) -> Iterator[Case]:
    """Yield calls in which everything is drawn: groups, lengths, layouts, masks, switches."""
    of = Random(0)
    for _ in range(count):
        dtype = of.choice(("float16", "bfloat16", "bfloat16", "float32"))
        samples, heads = of.choice((1, 2)), of.choice((1, 4, 6))
        keys = of.choice((heads, heads, 1, 2, 3))
        values = of.choice((keys, keys, keys, 1))
        queries, length = of.choice((0, 1, 16, 160)), of.choice((1, 16, 16, 20, 160))
        size = of.choice((1, 4, 8, 60, 64, 64, 72, 128, 192, 256))
        of_value, grad = of.choice((size, size, 64, 128)), of.random() < 0.3
        unusual = {"is_transposed": of.random() < 0.05, "offset": of.choice((0,) * 12 + (1, 4, 8))}
        mask = None
        if of.random() < 0.5:
            shape = of.choice(((queries, length), (1, length), (samples, 1, queries, length), (1, 1, 1, length),
                               (samples, heads, queries, length), (heads, queries, length)))  # fmt: skip
            mask_grad = of.random() < 0.2
            mask_dtype = dtype if mask_grad or of.random() < 0.5 else "bool"
            mask = Layout(shape, mask_dtype, mask_grad, is_transposed=of.random() < 0.1)
        yield Case(
            Layout((samples, heads, queries, size), dtype, grad, **unusual),
            Layout((samples, keys, length, size), dtype, grad),
            Layout((samples, values, length, of_value), of.choice((dtype,) * 9 + ("float32",))),
            mask,
            of.choice((0.0, 0.0, 0.1, 0.125)),
            mask is None and of.random() < 0.5,
            of.random() < 0.4,
            of.choice((ALL, ALL, *ONE_SWITCH, (False, True, True, True), (True, False, True, False))),
        )


def chosen(case: Case, card: str) -> str:
    set_switches(case.switches)
    tensors = [each.meta() for each in (case.query, case.key, case.value)]
    mask = None if case.mask is None else case.mask.meta()
    call = AttentionCall(*tensors, mask, case.dropout, case.is_causal, case.is_grouped)
    try:
        return attention_kernel(call, AnyGpu(float(card))).value
    except MembenchError:
        return "ERROR"


@pytest.mark.emulated
@pytest.mark.skipif(headers() is None, reason="needs a torch that is built for CUDA, and its runtime's headers")
@pytest.mark.parametrize("cards", [CUDNN_FIRST, OTHERS], ids=["cuDNN first", "others"])
def test_torch_itself_chooses_the_same_kernel(cards: list[str], tmp_path: Path) -> None:
    cases = [*table(), *drawn(1500)]
    for card, expected in zip(cards, choices_of_torch(cards, cases, tmp_path), strict=True):
        wrong = [
            f"{card}: {case}: torch {name}, ours {ours}"
            for case, name in zip(cases, expected, strict=True)
            if (ours := chosen(case, card)) != name
        ]
        assert not wrong, f"{len(wrong)} of {len(cases)}, the first: {wrong[:3]}"


def test_every_card_of_the_configurations_is_in_the_table() -> None:
    known = {configuration.load("device", name).compute_capability for name in configuration.names("device")}
    missing = known - {None} - set(map(float, (*CUDNN_FIRST, *OTHERS)))
    assert missing <= {3.7, 6.1}  # as 3.5 and 6.0
    assert torch.__version__
