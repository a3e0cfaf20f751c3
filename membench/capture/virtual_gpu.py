"""A GPU that this machine does not need to have: fake tensors that are on CUDA to operators, and on the CPU to autograd.

A fake tensor has CUDA's dispatch keys, so that autocast's lists and CUDA's composite operators apply to it. Each of them, and
autograd too, asks for the tensor's device. Autograd would look for a stream of that device, which needs a GPU; so it is
answered with the CPU. The two are told apart by the time of the question:

    a function of torch is called                 its composites and autocast ask for its arguments: CUDA
        an operator below autograd makes a tensor
        autograd asks for it, to give it a history: the CPU
        its composites and autocast ask for it, which has a history now: CUDA
    outside of functions                          only autograd asks: the CPU
    a wrapper is made, such as a `DTensor`        it asks for what it is stored in, and is there itself to autograd: the CPU
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from membench.core.torch_contexts import without_torch_function_modes
from membench.core.torch_internals import TorchDispatchMode, copy_to, tree_leaves, view_base

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Properties:
    """An A100, where a program asks for a GPU's properties to choose kernels and grids (`torch.cuda.get_device_properties`)."""

    name: str = "NVIDIA A100-SXM4-80GB"
    major: int = 8
    minor: int = 0
    total_memory: int = 80 * 2**30
    multi_processor_count: int = 108
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block_optin: int = 166912  # 163 KiB (CUDA's programming guide, compute capability 8.0)


_ANSWERS: dict[str, Callable[..., Any]] = {
    "get_device_properties": lambda device=None: _Properties(),
    "current_device": lambda: 0,
    "device": lambda device: nullcontext(),
}
"""Functions of `torch.cuda` by name, as they are during a trace; `get_device_capability` and others ask these."""


class OnCpu(TorchDispatchMode):
    """Answers that every tensor is on the CPU: to a wrapper that is made, which is asked by autograd alone from there on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _CPU if func is torch.ops.prim.device.default else func(*args, **(kwargs or {}))


class VirtualGpu:
    """Answers on which device a tensor is during a trace.

    Attributes:
        is_in_wrapper: a subclass runs an operator on the tensors that it wraps.
    """

    def __init__(self) -> None:
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
        before = {name: getattr(torch.cuda, name) for name in _ANSWERS}
        for name, answer in _ANSWERS.items():
            setattr(torch.cuda, name, answer)
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(torch.cuda, name, function)

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
        """Let autograd alone ask: as for an operator whose derivative is a function of Python's, which makes its history."""
        before, self._is_in_function = self._is_in_function, False
        try:
            yield
        finally:
            self._is_in_function = before

    @contextmanager
    def wrapper(self) -> Iterator[None]:
        """Let a subclass run an operator on the tensors that it wraps: what it makes of the results asks for their device."""
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
        """Note what an operator returned: autograd asks for it next, or for what it is a view of, if it was overwritten."""
        given = [each for each in tree_leaves(arguments) if isinstance(each, Tensor)]
        is_recorded = torch.is_grad_enabled() and any(each.requires_grad for each in given)
        if not (self._is_in_function and is_recorded):
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
        """Return whether an operator moves a tensor to the device where it is, as autograd's formula does that was told another."""
        if self._is_in_function or func is not copy_to or kwargs.get("device") != self.device:
            return False
        return kwargs.get("dtype", args[0].dtype) == args[0].dtype and kwargs.get("memory_format") is None

    def with_device(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return an operator's arguments with the GPU in place of the CPU, where models and formulas make tensors."""
        return {**kwargs, "device": self.device} if kwargs.get("device") == _CPU else kwargs
