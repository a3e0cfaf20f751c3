"""Functions that are traced in a different form from the one in which plain PyTorch runs them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from membench.capture.gpu.virtual_gpu import AnyGpu, VirtualGpu
from membench.capture.operators.attention import attention
from membench.capture.operators.flex_attention import Contents, flex_attention
from membench.capture.operators.triton_launches import recorded_launches
from membench.core.libraries.torch_contexts import (
    StopRecomputation,
    flex_attention_as_written,
    without_autocast,
    without_cudnn,
)
from membench.core.libraries.torch_internals import (
    FLEX_ATTENTION,
    FakeTensor,
    OpOverload,
    OpOverloadPacket,
    is_of_torch,
)

_DEVICE_OF = torch.Tensor.device.__get__
_ATTENTION = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
"""torch's own: within `torch.distributed.tensor.experimental.context_parallel` another function has that name."""


class StoppedInDropout(StopRecomputation):
    """A region that runs again ends where autograd saves a dropout's mask, by which PyTorch then does not multiply."""


_PYTHON_MODULES = ("torch.nn.functional", "torch.functional")


@contextmanager
def traced_kernels(gpu: VirtualGpu | None) -> Iterator[None]:
    """Trace what reaches no function of torch: Triton's launches, and questions to a GPU by which programs choose."""
    with recorded_launches(), flex_attention_as_written(), gpu.questions() if gpu else nullcontext():
        yield


class AsOperators(TorchFunctionMode):
    """Trace functions as operators that a schedule can run.

    Dropout is ``native_dropout``, with a one-byte mask, as it runs on a GPU, unless it is in place. On the CPU it draws
    the same numbers and gives the same bits as ``torch.nn.functional.dropout``. A recurrent network does not run in
    cuDNN, which needs all weights in one allocation; its sums are rounded differently. On the CPU each layer and
    direction of an LSTM is one operator, oneDNN's, as in plain PyTorch.

    Args:
        gpu: the GPU of the trace, if this machine does not need to have it: attention takes the kernel that one
            chooses.
        contents: see `membench.capture.operators.flex_attention.Contents`.
    """

    _DROPOUTS = (torch.dropout, torch.nn.functional.dropout)
    _BACKWARD = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
    _MAKE_LEAVES = (Tensor.requires_grad_, Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
    _RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

    def __init__(self, gpu: VirtualGpu | None = None, contents: Contents = lambda _: None) -> None:
        super().__init__()
        self._gpu, self._contents = gpu, contents

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = self._run(func, args, kwargs or {})
        if self._gpu is not None and (func in self._MAKE_LEAVES or (kwargs and kwargs.get("requires_grad"))):
            self._gpu.own(each for each in (*args[:1], output) if isinstance(each, Tensor))
        return output

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        # autograd asks for what an operator of a library returns, whose formula for gradients is written in Python
        is_outside = func in self._BACKWARD or isinstance(func, OpOverload | OpOverloadPacket)
        with nullcontext() if self._gpu is None or is_outside else self._gpu.function():
            if func is Tensor.data_ptr and isinstance(args[0], FakeTensor):
                return 0  # so that recurrent layers do not ask whether their weights lie in one memory
            if func in self._DROPOUTS:
                return _dropout(*args, **kwargs)
            if func in self._RECURRENT:
                with without_cudnn():
                    return func(*args, **kwargs)
            if func is FLEX_ATTENTION:
                return flex_attention(self._gpu, self._contents, *args, **kwargs)
            if self._gpu is None:
                return func(*args, **kwargs)
            if func in _ATTENTION:
                return _cast_attention(self._gpu.stands_for, *args, **kwargs)
            if func == _DEVICE_OF:  # the program has moved all of its tensors there
                return self._gpu.device
            if isinstance(func, OpOverload | OpOverloadPacket) and not is_of_torch(str(func)):
                with self._gpu.outside():
                    return func(*args, **kwargs)
            if _is_written_in_python(func):
                with self:  # for the functions that it calls
                    return _without_dispatch(func)(*args, **kwargs)
            return func(*args, **kwargs)


def _cast_attention(gpu: AnyGpu, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Run attention on what autocast makes of its arguments: it is on the list of operators in half precision."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")

        def cast(argument: Any) -> Any:
            is_cast = isinstance(argument, Tensor) and argument.is_floating_point()
            return argument.to(dtype) if is_cast and argument.dtype is not torch.float64 else argument

        query, key, value = map(cast, (query, key, value))
        args, kwargs = tuple(map(cast, args)), {name: cast(each) for name, each in kwargs.items()}
    with without_autocast("cuda"):
        return attention(gpu, query, key, value, *args, **kwargs)


def _is_written_in_python(func: Any) -> bool:
    """Return whether a function is one of torch's that calls others of them."""
    return type(func) is FunctionType and func.__globals__["__name__"] in _PYTHON_MODULES


@cache
def _without_dispatch(func: FunctionType) -> Callable[..., Any]:
    """Return a function of `torch.nn.functional` whose calls a mode sees, and which does not dispatch to the mode."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**func.__globals__, **dict.fromkeys(names, lambda *_: False)}
    helpers = {name: each for name, each in scope.items() if name.startswith("_") and _is_of_module(each, func)}
    scope.update(
        (name, _in_scope(each, scope)) for name, each in helpers.items()
    )  # they hand the function to it as well
    return _in_scope(func, scope)


def _is_of_module(candidate: Any, func: FunctionType) -> bool:
    return type(candidate) is FunctionType and candidate.__globals__ is func.__globals__


def _in_scope(func: FunctionType, scope: dict[str, Any]) -> FunctionType:
    copy = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _dropout(
    input: Tensor,  # noqa: A002 (the names are torch's)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> Tensor:
    if inplace:
        return torch.dropout_(input, p, training)
    if not (training if train is None else train) or p == 0:
        return input
    if p == 1:  # nothing is drawn
        return torch.dropout(input, p, True)
    try:
        return torch.native_dropout(input, p, True)[0]
    except StopRecomputation as stopped:
        raise StoppedInDropout from stopped
