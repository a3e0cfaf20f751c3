"""Fake tensors of a trace are torch's own, but for the time that they take."""

from typing import Any

import pytest
import torch
from torch import Tensor

from membench.core.libraries import torch_fake_tensors as fakes
from membench.core.libraries.torch_internals import FakeTensor, storage_address


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cuda", 0)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_fake_tensor_is_what_the_constructor_makes(device: torch.device, requires_grad: bool) -> None:
    mode = fakes.trace_fakes()
    meta = torch.empty_strided((2, 3), (1, 2), device="meta", requires_grad=requires_grad)
    expected = FakeTensor(mode, meta, device)
    made = fakes.fake_tensor(
        mode, (2, 3), (1, 2),
        dtype=torch.float32, device=device, view_of=None, offset=0, requires_grad=requires_grad,
    )  # fmt: skip
    assert type(made) is FakeTensor and vars(made) == vars(expected)
    assert torch._C._dispatch_keys(made) == torch._C._dispatch_keys(expected)
    for each in (made, expected):
        assert (each.device, each.dtype, each.requires_grad, each.is_leaf) == (
            device, torch.float32, requires_grad, True
        )  # fmt: skip
        assert (each.shape, each.stride(), each.storage_offset()) == ((2, 3), (1, 2), 0)


def test_a_view_shares_its_storage() -> None:
    mode = fakes.trace_fakes()
    whole = FakeTensor(mode, torch.empty(6, device="meta"), torch.device("cpu"))
    view = fakes.fake_tensor(
        mode, (2,), (2,), dtype=whole.dtype, device=whole.device, view_of=whole, offset=1, requires_grad=False
    )
    assert view.storage_offset() == 1
    assert storage_address(view.untyped_storage()) == storage_address(whole.untyped_storage())


def test_a_trace_keeps_no_results_of_shape_functions() -> None:
    mode = fakes.trace_fakes()
    before = mode.cache_hits, mode.cache_misses
    with mode:
        assert torch.ones(2, 3).sum(0).shape == (3,)
    assert (mode.cache_hits, mode.cache_misses) == before


def test_modes_of_a_trace_are_called_directly() -> None:
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    assert vars(type("Mode", (fakes.TraceMode,), {"__torch_dispatch__": dispatch}))["__torch_dispatch__"] is dispatch


def test_types_are_fake_if_all_of_them_are() -> None:
    assert fakes.are_fake((FakeTensor,)) and fakes.are_fake(())
    assert not fakes.are_fake((FakeTensor, Tensor))
