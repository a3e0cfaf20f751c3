"""What an optimizer's step calls outside of torch's operators, while it runs on tensors without data."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from membench.capture.update.update_recorder import UpdateRecorder
from membench.core.libraries.one_thread import replaced


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let a step wait for a GPU that this machine need not have, as bitsandbytes' steps do after each weight."""
    with replaced(torch.cuda, "synchronize", lambda *_: None):
        yield


@contextmanager
def compiled_in_one_kernel(recorder: UpdateRecorder) -> Iterator[None]:
    """Run what a step compiles with `torch.compile` as it is, and record each call as one kernel."""

    def compile_now(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        if function is None:
            return compile_now

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with recorder.one_kernel():
                return function(*args, **kwargs)

        return call

    with replaced(torch, "compile", compile_now):
        yield


@contextmanager
def managed_as_host_memory() -> Iterator[None]:
    """Take managed memory of CUDA, in which bitsandbytes' paged optimizers have states, as host memory."""
    library = sys.modules.get("bitsandbytes.functional")
    if library is None:
        yield
        return

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
        paged = torch.empty(shape, dtype=dtype, device="cpu")
        vars(paged)["is_paged"] = True
        return paged

    kept = library.GlobalPageManager.get_instance().paged_tensors
    before = len(kept)
    with (
        replaced(library, "get_paged", get_paged),
        replaced(library, "fill", lambda *_: None),
        replaced(library, "prefetch_tensor", lambda *_: None),
    ):
        try:
            yield
        finally:
            del kept[before:]
