"""Contexts of torch by its private API: modes, autocast, hooks, regions that run again, compiled calls.

And optimizers' hooks, without which views of them step.

With `membench.core.libraries.torch_internals` and `torch_inductor`, the only module that names private attributes of
torch; the same test checks it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from sys import _getframe as frame_of
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import Distribution
from torch.nn.modules import module as modules
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim import optimizer as _optimizer
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes

from membench.core.libraries.one_thread import Here, attribute, replaced, switched


@contextmanager
def flex_attention_as_written() -> Iterator[None]:
    """Let ``flex_attention``, if imported, call its operator itself; otherwise it compiles that call."""
    module: Any = sys.modules.get("torch.nn.attention.flex_attention")
    if module is None:
        yield
        return
    with switched(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", to=True):
        yield


def index_by_tensors() -> AbstractContextManager[Any]:
    """Return a context in which a tensor without dimensions is an index whose value is not read."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # takes seconds

    return TransformGetItemToIndex()


without_dispatch_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes
"""Return a context in which no `TorchDispatchMode` is active, but may be entered."""


@contextmanager
def placements_chosen_unseen() -> Iterator[None]:
    """Hide from dispatch modes how a `DTensor` chooses placements: it runs operators of whole tensors, without data."""
    if "torch.distributed.tensor" not in sys.modules:
        yield
        return
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    with ExitStack() as patches:
        for name in ("propagate_op_sharding_non_cached", "_propagate_tensor_meta_non_cached"):
            unseen = _without_modes(getattr(ShardingPropagator, name))
            patches.enter_context(replaced(ShardingPropagator, name, unseen))
        yield


def _without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments)

    return call


without_torch_function_modes: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
"""Return a context in which torch's functions hand themselves to no mode and no subclass of tensors."""


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Switch cuDNN off, but not as `torch.backends` does, which sets TF32 as well."""
    has_cudnn = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(has_cudnn)


@contextmanager
def autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Cast as `torch.autocast` does, also for a device that this machine lacks, where that would switch itself off."""
    before = (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )

    def set_state(is_enabled: bool, dtype: torch.dtype, is_cached: bool) -> None:
        torch.set_autocast_enabled(device_type, is_enabled)
        torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(is_cached)

    set_state(True, dtype, True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        set_state(*before)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast casts to now, None outside of it."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def attention_switches() -> tuple[bool, bool, bool, bool]:
    """Return which kernels of attention torch may choose now: cuDNN's, flash, memory-efficient, unfused."""
    cuda = torch.backends.cuda
    return (
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )


@contextmanager
def without_autocast(device_type: str) -> Iterator[None]:
    """Switch autocast off for a device, also for one that this machine lacks."""
    before = torch.is_autocast_enabled(device_type)
    torch.set_autocast_enabled(device_type, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before)


@contextmanager
def foreach_types(*types: type[Tensor]) -> Iterator[None]:
    """Let optimizers choose operators on lists for weights of these types too, as they do by default for plain ones."""
    before = list(_optimizer._foreach_supported_types)
    _optimizer._foreach_supported_types.extend(types)
    try:
        yield
    finally:
        _optimizer._foreach_supported_types[:] = before


def is_hook_of_optimizer(attribute: str) -> bool:
    """Return whether an optimizer's attribute is hooks, or what a schedule of learning rates puts around its step."""
    return attribute.startswith("_optimizer_") or attribute in ("step", "_opt_called")


def without_hooks(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's attributes with empty hooks, and without a learning-rate schedule's wrapper of its step."""
    return {
        name: type(value)() if is_hook_of_optimizer(name) else value
        for name, value in attributes.items()
        if name not in ("step", "_opt_called")
    }


def runs_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether functions of the program run before or after an optimizer's step."""
    of_all = (_optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks)
    own = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return any((*of_all, *(getattr(optimizer, name, None) for name in own)))


def note_optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """Note that an optimizer has stepped: a schedule of learning rates warns if it has not."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


_top_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks


def has_saved_tensor_hooks() -> bool:
    """Return whether hooks on saved tensors are set."""
    return _top_hooks(True) is not None


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Set hooks on saved tensors aside: those of `torch.utils.checkpoint` would call the module again."""
    hooks: list[Any] = []
    while (top := _top_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextmanager
def without_value_checks() -> Iterator[None]:
    """Keep torch's distributions from validating their arguments: fake tensors have no values."""
    with switched(Distribution, "_validate_args", to=False):
        yield


@contextmanager
def regions_run_by(
    again: Callable[[Callable[..., Any]], Callable[..., Any]],
    enter_backward: Callable[[Sequence[Tensor]], None],
    *,
    on_device: bool,
) -> Iterator[None]:
    """Run the regions of `torch.utils.checkpoint`, of both kinds, by functions of the caller.

    Args:
        again: takes the function that runs a region again, when the region first runs, and returns what is called
            instead.
        enter_backward: called with the roots of each backward pass within a backward pass, as reentrant regions have.
        on_device: restore random state and autocast of the arguments' device, which must be one of this machine's.
    """

    def frame(recompute: Callable[..., Any], *args: Any) -> Any:
        return frames(again(recompute), *args)

    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        repeated, output = again(function), of_function.forward(ctx, function, *args)
        ctx.run_function = repeated
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        with replaced(torch.autograd, "backward", nested):
            return of_function.backward(ctx, *gradients)

    def nested(tensors: Any, gradients: Any) -> None:
        enter_backward(tensors)
        original(tensors, gradients)

    own, frames, original = checkpoint.CheckpointFunction, checkpoint._CheckpointFrame, torch.autograd.backward
    of_function = SimpleNamespace(forward=own.forward, backward=own.backward)
    with (
        nullcontext() if on_device else replaced(checkpoint, "_infer_device_type", lambda *_: "cpu"),
        replaced(checkpoint, "_CheckpointFrame", frame),
        replaced(own, "forward", forward),
        replaced(own, "backward", backward),
    ):
        yield


def active_transform() -> str:
    """Return the name of the transform of torch that this thread's operators run in, or an empty string."""
    interpreter: Any = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None:
        return f"a transform of torch.func ({interpreter.key().name.lower()})"
    if torch._C._is_tracing():
        return "torch.jit.trace"
    found = (name for mode, name in _MODES.items() if torch._C._get_dispatch_mode(mode) is not None)
    return next(found, "")


_MODES = {
    torch._C._TorchDispatchModeKey.PROXY: "a trace of torch (make_fx, torch.export)",
    torch._C._TorchDispatchModeKey.FUNCTIONAL: "functionalization",
    torch._C._TorchDispatchModeKey.FAKE: "a FakeTensorMode",
}


is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Return whether a tensor stands for several gradients (``is_grads_batched``, ``vectorize`` in `torch.autograd`)."""


def has_forward_derivatives() -> bool:
    """Return whether forward-mode derivatives are taken, so that tensors may have tangents."""
    return forward_ad._current_level >= 0


StopRecomputation = checkpoint._StopRecomputationError
"""Raised where a region that runs again has all that the backward pass needs."""


swapped_tensors: Callable[..., AbstractContextManager[None]] = _reparametrize_module
"""Return a context in which a module has other tensors, by name, as its weights and buffers."""


class _EagerHere:
    """A stance of `torch.compile` with which code of this thread that is compiled in one graph may find none.

    Args:
        before: the stance of all other threads, and where it is asked for.
    """

    def __init__(self, before: Any) -> None:
        self.skip_guard_eval_unsafe, self.backend = before.skip_guard_eval_unsafe, before.backend
        self.is_asked = False
        self._before, self._here = before.stance, Here()

    @property
    def stance(self) -> str:
        return "force_eager" if self._here and not self.is_asked else self._before


@contextmanager
def compiled_calls_noted(note: Callable[[Callable[..., Any]], None]) -> Iterator[None]:
    """Call a function with what was given to `torch.compile` whenever that is called and is not to run as it is.

    A module is given as its method. `torch.compiler.disable` and ``set_stance("force_eager")`` run functions as they
    are. torch does not warn of hooks on every module meanwhile, which a trace has.
    """
    from torch._dynamo import eval_frame  # takes a second, which imports of membench need not wait for

    chosen_by_stance, stance = eval_frame._callback_from_stance, _EagerHere(eval_frame._stance)

    def noting(callback: Any) -> Any:
        stance.is_asked = True
        try:
            chosen = chosen_by_stance(callback)
        finally:
            stance.is_asked = False
        if callable(chosen) and (function := frame_of(2).f_locals.get("fn")) is not None:
            note(function)
            return None  # run it as it is written
        return chosen

    with (
        attribute(eval_frame, "_stance", stance),
        replaced(eval_frame, "_callback_from_stance", noting),
        replaced(modules, "_has_any_global_hook", lambda: False),
    ):
        yield
