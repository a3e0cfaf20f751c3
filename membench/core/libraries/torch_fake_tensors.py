"""Fake tensors and dispatch modes of a trace, made without what torch does for programs that are compiled.

A trace makes as many fake tensors as its step has operators, and its mode is called several times for each.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from membench.core.libraries.torch_devices import stand_in_for_cuda

DEVICE_OF = torch.ops.prim.device.default
"""The operator by which torch asks a tensor that is not on its storage's device where it is."""


class TraceMode(TorchDispatchMode):
    """A dispatch mode that runs within no compiled function, from which torch would shield each of its calls."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def trace_fakes() -> FakeTensorMode:
    """Return a mode of fake tensors for a trace.

    It keeps no shape function's result, for which it would describe each call: a trace keeps those of its own calls.
    """
    stand_in_for_cuda()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False
    return mode


def fake_tensor(
    mode: FakeTensorMode,
    shape: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
    view_of: Tensor | None,
    offset: int,
    requires_grad: bool,
) -> FakeTensor:
    """Return what ``FakeTensor(mode, meta, device)`` does for a new tensor without data, in a fifth of its time.

    Args:
        view_of: the tensor whose storage it shares; None: it starts a new storage.
        offset: in the storage that it shares; in elements, as strides.
    """
    undispatched = torch._C._DisableTorchDispatch()
    try:
        meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta", requires_grad=requires_grad)
        if view_of is not None:
            meta.set_(view_of.untyped_storage(), offset, shape, stride)
        blank = _blank()
        device = _normalized(device) if device.index is not None else _normalized.__wrapped__(device)
        made: FakeTensor = Tensor._make_subclass(
            FakeTensor, meta, requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        if mode._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(blank, fake_mode=mode, **{_DEVICE: device})
        return made
    finally:
        del undispatched


_DEVICE = "_fake_device" if hasattr(FakeTensor, "_normalize_fake_device") else "fake_device"
"""The attribute with the device; the second is torch 2.11's, whose constructor also chooses the device's number."""


@cache
def _normalized(device: torch.device) -> torch.device:
    """Return a device with its number, as the constructor of fake tensors chooses it."""
    made: torch.device = vars(FakeTensor(FakeTensorMode(), torch.empty(0, device="meta"), device))[_DEVICE]
    return made


@cache
def _blank() -> dict[str, Any]:
    """Return the attributes that are alike in all new fake tensors, none of which is changed in place."""
    mode = FakeTensorMode()
    return {
        name: value
        for name, value in vars(FakeTensor(mode, torch.empty(0, device="meta"), torch.device("cpu"))).items()
        if name not in ("fake_mode", _DEVICE)
    }


@cache
def are_fake(types: tuple[type, ...]) -> bool:
    """Return whether the types of tensors that an operator is called with are all fake."""
    return all(issubclass(each, FakeTensor) for each in types)
