"""A GPU that this machine need not have: fake tensors are on CUDA to operators, and on the CPU to autograd.

A fake tensor has CUDA's dispatch keys, so that autocast's lists and CUDA's composite operators apply to it. Each of
them, and autograd too, asks for the tensor's device. Autograd would look for a stream of that device, which needs a
GPU; so it is answered with the CPU. The two are told apart by the time of the question:

    a function of torch is called                 its composites and autocast ask for its arguments: CUDA
        an operator below autograd makes a tensor
        autograd asks for it, to give it a history: the CPU
        its composites and autocast ask for it, which has a history now: CUDA
    outside of functions                          only autograd asks: the CPU
    a wrapper is made, such as a `DTensor`        it asks for its storage, and is itself there to autograd: the CPU
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from membench.core.libraries.one_thread import replaced
from membench.core.libraries.torch_contexts import without_torch_function_modes
from membench.core.libraries.torch_internals import TorchDispatchMode, copy_to, tree_leaves, view_base

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class AnyGpu:
    """A GPU that this machine does not need to have; a GPU of this machine is a `torch.device` with an index.

    Attributes:
        compute_capability: see `DeviceProfile`; None: not NVIDIA's, or not known, where kernels are chosen as on an
            A100.
    """

    compute_capability: float | None = None

    @property
    def architecture(self) -> tuple[int, int]:
        """The capability as torch has it, ``(8, 6)``."""
        major, minor = divmod(round(10 * (self.compute_capability or 8.0)), 10)
        return major, minor


@dataclass(frozen=True)
class _Properties:
    """Properties by which programs choose kernels (`get_device_properties`): an A100's but for the architecture."""

    name: str = "NVIDIA A100-SXM4-80GB"
    major: int = 8
    minor: int = 0
    total_memory: int = 80 * 2**30
    multi_processor_count: int = 108
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block_optin: int = 166912  # 163 KiB (CUDA's programming guide, compute capability 8.0)


def _answers(gpu: AnyGpu) -> dict[str, Callable[..., Any]]:
    """Return functions of `torch.cuda` by name during a trace; `get_device_capability` and others ask these."""
    major, minor = gpu.architecture
    return {
        "get_device_properties": lambda device=None: _Properties(major=major, minor=minor),
        "current_device": lambda: 0,
        "device": lambda device: nullcontext(),
    }


class OnCpu(TorchDispatchMode):
    """Answers a new wrapper that every tensor is on the CPU, as autograd alone asks from there on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _CPU if func is torch.ops.prim.device.default else func(*args, **(kwargs or {}))


class VirtualGpu:
    """Answers on which device a tensor is during a trace.

    Args:
        stands_for: the GPU.

    Attributes:
        is_in_wrapper: a subclass runs an operator on the tensors that it wraps.
    """

    def __init__(self, stands_for: AnyGpu) -> None:
        self.stands_for = stands_for
        self.device = torch.device("cuda", 0)
        self._edges: list[GradientEdge] = []
        self._is_in_function = False
        self.is_in_wrapper = False
        # living tensors for which autograd asks next, and whether they had a history before
        self._asked_next: dict[int, tuple[ref[Tensor], bool]] = {}

    def own(self, trained: Iterable[Tensor]) -> None:
        """Make autograd ask for tensors without a history now, outside of functions, instead of at their first use."""
        self._edges += self._edges_of(trained)

    @contextmanager
    def questions(self) -> Iterator[None]:
        """Answer what a program asks of the GPU itself, which would look for a driver."""
        with ExitStack() as questions:
            for name, answer in _answers(self.stands_for).items():
                questions.enter_context(replaced(torch.cuda, name, answer))
            yield

    @contextmanager
    def leaves(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Run a function with these arguments; see `own`."""
        edges = self._edges_of(tensors)
        yield
        edges.clear()

    def _edges_of(self, tensors: Iterable[Tensor]) -> list[GradientEdge]:
        with self.outside(), without_torch_function_modes():
            return [get_gradient_edge(each) for each in tensors if each.requires_grad and each.is_leaf]

    @contextmanager
    def function(self) -> Iterator[None]:
        """Run a function of torch."""
        before = self._is_in_function, self._asked_next
        self._is_in_function, self._asked_next = True, {}
        try:
            yield
        finally:
            self._is_in_function, self._asked_next = before

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Let autograd alone ask, as for an operator whose derivative is a function of Python's."""
        before, self._is_in_function = self._is_in_function, False
        try:
            yield
        finally:
            self._is_in_function = before

    @contextmanager
    def wrapper(self) -> Iterator[None]:
        """Let a subclass run an operator on the tensors that it wraps, whose device its results then ask for."""
        self.is_in_wrapper = True
        try:
            with self.outside():
                yield
        finally:
            self.is_in_wrapper = False

    def device_of(self, tensor: Tensor) -> torch.device:
        """Return the device that a tensor is on for whom asks now."""
        if not self._is_in_function:
            return _CPU
        if id(tensor) in self._asked_next:
            _, had_history = self._asked_next[id(tensor)]
            if had_history or tensor.grad_fn is None:
                return _CPU
            del self._asked_next[id(tensor)]
        device: torch.device = tensor.device
        return device

    def note_made(self, arguments: Any, output: Any) -> None:
        """Note what an operator returned: autograd asks for it next, or for its base if it was overwritten."""
        if not (self._is_in_function and torch.is_grad_enabled()):
            return
        given = [each for each in tree_leaves(arguments) if isinstance(each, Tensor)]
        if not any(each.requires_grad for each in given):
            return
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                is_overwritten = any(each is tensor for each in given)
                self._note(tensor, is_overwritten)
                if is_overwritten and (base := view_base(tensor)) is not None:
                    self._note(base, True)

    def _note(self, tensor: Tensor, had_history: bool) -> None:
        """Note a tensor as long as it lives: its id may be another's afterwards."""
        asked_next, key = self._asked_next, id(tensor)
        asked_next[key] = ref(tensor, lambda _: asked_next.pop(key, None)), had_history

    def copies_to_host(self, func: Any, kwargs: dict[str, Any]) -> bool:
        """Return whether an operator that a function calls copies a tensor to the host."""
        return self._is_in_function and func is copy_to and kwargs.get("device") == _CPU

    def stays(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether an operator moves a tensor to where it is, as autograd's formula may for another device."""
        if self._is_in_function or func is not copy_to or kwargs.get("device") != self.device:
            return False
        return kwargs.get("dtype", args[0].dtype) == args[0].dtype and kwargs.get("memory_format") is None

    def with_device(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return an operator's arguments with the GPU in place of the CPU, where models and formulas make tensors."""
        return {**kwargs, "device": self.device} if kwargs.get("device") == _CPU else kwargs
