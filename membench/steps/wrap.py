"""`membench.wrap`: a module whose forward and backward pass run under a memory strategy, in any training loop.

    the module's class <- a subclass with another forward <- the wrapped module, which shares the module's attributes

A call is captured and planned on the first use of its kind: shapes, dtypes and layouts of its arguments, training or
evaluation mode of each layer, frozen weights, autocast, the default dtype, and whether gradients are asked for.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from membench.backends.real import real_backend, real_backends, real_device
from membench.capture.capture import Captures
from membench.capture.module.compiled import refuse_compiled
from membench.core.checks import choice
from membench.core.errors import (
    MembenchError,
    ModuleChanged,
    ShapeMismatch,
    StepOutdated,
    UnsupportedModel,
    UnsupportedStrategy,
)
from membench.core.graph.precision import Precision
from membench.core.libraries.shared_memory import sharing
from membench.core.libraries.torch_contexts import attention_switches, autocast_dtype
from membench.core.libraries.torch_internals import FakeTensor, is_compiled, tree_flatten
from membench.core.step.arguments import Arguments, as_arguments, check_leaf, is_dense, named_leaves, tensors_in
from membench.core.step.fully_sharded import is_fully_sharded
from membench.core.step.kernels import Kernels
from membench.core.step.module_checks import check_module
from membench.core.step.opened import opened
from membench.core.step.workload import Workload
from membench.profiling.cache import load_cache
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.arguments import as_bytes, as_strategy
from membench.steps.compile_checks import check_placement
from membench.steps.keywords import CompileKeywords, check_is_module, check_keywords
from membench.steps.plan import plan
from membench.steps.real.as_run import graph_as_run
from membench.steps.real.kept_steps import KeptSteps, Shapes, described, kind_of
from membench.steps.real.placement import place_module
from membench.steps.wrapped.examples import without_memory
from membench.steps.wrapped.shared_attributes import Module, sharing_attributes
from membench.steps.wrapped.wrapped_step import WrappedStep, check_untransformed
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager

_ATOMS = (Tensor, bool, int, float, str, type(None))


def wrap(
    module: Module,
    *,
    strategy: str | Strategy = "eager",
    budget: str | float | None = None,
    backend: str = "cpu",
    example: Any = None,
    shapes: str = "any",
    kernels: str = "eager",
) -> Module:
    """Return a module with the same weights whose forward and backward pass run under a memory strategy.

    It is called like the module and returns the same, with eager kernels to the bit; its backward pass runs when
    autograd reaches it, from whatever loss; within `torch.compile` its call is a graph break. Both share weights,
    buffers, mode, hooks and all other attributes; the module itself stays as it is. Calls without gradients run under
    the strategy if it schedules inference, otherwise under ``eager``.

    Args:
        module: the network.
        strategy: a name (``"layrub_hybrid"``) or an instance.
        budget: the most device memory that a call may hold, with weights, inputs, outputs and their gradients:
            ``"200 MB"`` (1 MB is 1024 x 1024 bytes) or a number of bytes.
        backend: ``"cpu"`` or ``"cuda"``, to which the module is moved as by ``module.to``.
        example: arguments of a call as `membench.compile` takes inputs; the call is captured and planned now, so that
            errors are raised here. None: at the first call.
        shapes: ``"any"`` captures and plans each new kind of call when it is first made, and keeps up to
            `membench.steps.real.kept_steps.MOST_KEPT` of them; ``"fixed"`` refuses all calls but those like the first.
        kernels: ``"eager"`` or ``"inductor"``, on the CPU; see `membench.compile`.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer. Calls raise it too.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph. Calls raise it too.
        InfeasibleSchedule: the strategy cannot keep the budget. Calls raise it too.
        MembenchError: an argument is invalid, or there is no GPU.
    """
    check_is_module(module)
    check_keywords(CompileKeywords, {"backend": backend, "shapes": shapes, "kernels": kernels}, "wrap")
    _check(module, backend)
    compiled_by = choice(Kernels, "kernels", kernels)
    if compiled_by is not Kernels.EAGER and backend != "cpu":
        raise MembenchError(f"kernels={compiled_by} runs on the CPU alone (backend='cpu'); leave kernels out")
    is_fixed = choice(Shapes, "shapes", shapes) is Shapes.FIXED
    calls = WrappedCalls(
        module, as_strategy(strategy), as_bytes(budget), real_device(backend), is_fixed=is_fixed, kernels=compiled_by
    )
    wrapped = sharing_attributes(module, calls)
    if example is not None:
        calls.prepare(as_arguments(example))
    return wrapped


def _check(module: nn.Module, backend: str) -> None:
    """Refuse what cannot be wrapped; see `wrap`."""
    if hasattr(type(module), "wrapped_calls"):
        raise MembenchError("the module is wrapped already; wrap the original")
    check_module(type(module).__name__, module)
    if is_fully_sharded(module):
        raise UnsupportedModel(
            type(module).__name__,
            "fully_shard has wrapped it, whose hooks run at its own call",
            "compile the step with its loss, membench.compile(module, loss, batch)",
        )
    if is_compiled(module):
        refuse_compiled("", type(module).__name__)
    if backend not in real_backends():
        raise MembenchError(
            f"there is no backend {backend!r} for a wrapped module; choose one of {', '.join(real_backends())}"
        )


class WrappedCalls:
    """The calls of a wrapped module, its attribute ``wrapped_calls``; threads may call it at once.

    Args:
        module: whose forward is captured.
        strategy: schedules calls of the modes that it has; ``eager`` the others.
        budget_bytes: budget of each call; None: no limit.
        device: where calls run.
        is_fixed: only calls like the first are made.
        kernels: what computes the tasks.
    """

    def __init__(
        self,
        module: nn.Module,
        strategy: Strategy,
        budget_bytes: int | None,
        device: torch.device,
        *,
        is_fixed: bool,
        kernels: Kernels,
    ) -> None:
        self.module = module
        self.strategy = strategy
        self.budget_bytes = budget_bytes
        self.device = device
        self.is_fixed = is_fixed
        self.kernels = kernels
        self._cost = MeasuredCost(device, load_cache(device) if device.type == "cuda" else None)
        self._signature = inspect.signature(module.forward)
        self._steps: KeptSteps[WrappedStep] = KeptSteps()
        self._first = ""  # call, described
        self._capturing = RLock()  # the module's weights are others meanwhile
        self._layers: list[nn.Module] = []
        self._weights: list[nn.Parameter] = []
        self._positions: dict[int, int] = {}  # of weights, by identity

    @property
    def steps(self) -> tuple[WrappedStep, ...]:
        """The steps that are kept, the latest used last; each has a schedule, which prints as text."""
        return tuple(self._steps)

    @property
    def predicted_peak_bytes(self) -> int:
        """The largest predicted peak of a call; see `WrappedStep`.

        Raises:
            MembenchError: nothing has been captured.
        """
        if not self._steps:
            raise MembenchError("the wrapped module has not been called; call it, or pass an example to wrap")
        return max(step.predicted_peak_bytes for step in self._steps)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that calls hold now while they wait for their backward pass, of steps that are kept."""
        return sum(step.waiting * step.held_bytes for step in self._steps)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a call of the module.

        Raises:
            StepOutdated: earlier calls may have been wrong; the next one is captured anew.
            ShapeMismatch: the call is not like the first, and shapes are fixed, or a tensor is on another device.
            MembenchError: see `wrap`.
        """
        given: tuple[Any, Any] = (args, kwargs)
        proxies = (isinstance(each, torch.fx.Proxy) for each in chain(given, args))
        if any(proxies):
            raise MembenchError("torch.fx cannot trace a wrapped module; trace the module that was wrapped")
        arguments = self._arguments(args, kwargs)
        leaves, structure = tree_flatten(arguments)
        tensors = (each for each in leaves if isinstance(each, Tensor))
        check_untransformed(chain(tensors, self.module.parameters(), self.module.buffers()))
        try:
            return self._step_for(arguments, leaves, structure)(leaves)
        except StepOutdated:
            with self._capturing:
                self._steps.clear()
            raise
        except ModuleChanged:
            if self.is_fixed:
                raise
            with self._capturing:
                self._steps.clear()
            return self._step_for(arguments, leaves, structure)(leaves)

    def prepare(self, arguments: Arguments) -> None:
        """Capture and plan a call without running it; see `__call__`."""
        given = self._arguments((), arguments) if isinstance(arguments, dict) else arguments
        self._step_for(given, *tree_flatten(given))

    def of(self, module: nn.Module) -> "WrappedCalls":
        """Return the same for a copy of the module."""
        return WrappedCalls(
            module, self.strategy, self.budget_bytes, self.device, is_fixed=self.is_fixed, kernels=self.kernels
        )

    def close(self) -> None:
        """Release threads, host memory and what was captured; a later call captures again."""
        self._steps.clear()

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return arguments as a tuple, or by name if one is given by name."""
        if not kwargs:
            return args
        if not args:
            return dict(sorted(kwargs.items()))
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise MembenchError(f"the module's forward takes {self._signature}: {error}") from error
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                raise MembenchError(
                    f"the module's forward takes {self._signature}; pass all arguments by position, or all by name"
                )
            named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return dict(sorted(named.items()))

    def _step_for(self, arguments: Arguments, leaves: list[Any], structure: Any) -> WrappedStep:
        with self._capturing:
            return self._found_or_captured(arguments, leaves, structure)

    def _found_or_captured(self, arguments: Arguments, leaves: list[Any], structure: Any) -> WrappedStep:
        if not len(self._steps):
            self._layers, self._weights = list(self.module.modules()), list(self.module.parameters())
            self._positions = {id(weight): position for position, weight in enumerate(self._weights)}
        trains = torch.is_grad_enabled() and (
            any(weight.requires_grad for weight in self._weights)
            or any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
        )
        precision = self._autocast()
        if not all(isinstance(leaf, _ATOMS) for leaf in leaves):  # an object counts by what it holds
            leaves, structure = tree_flatten(opened(arguments))
        key = (
            trains,
            precision,
            torch.get_default_dtype(),
            attention_switches(),
            structure,
            tuple([kind_of(leaf, with_gradient=trains) for leaf in leaves]),
            sharing([leaf for leaf in leaves if isinstance(leaf, Tensor) and is_dense(leaf)]),
            tuple([self._positions.get(id(leaf)) for leaf in leaves if isinstance(leaf, nn.Parameter)]),
            tuple([layer.training for layer in self._layers]),
            tuple([weight.requires_grad for weight in self._weights]) if trains else (),
        )
        step = self._steps.find(key)
        if step is not None:
            return step
        description = self._description(arguments, trains)
        if not len(self._steps):
            self._first = description
        elif self.is_fixed:
            raise ShapeMismatch(
                f"{description} is not like the first one, {self._first}, and shapes are fixed; leave "
                "shapes='fixed' out, or wrap the module once more for such calls"
            )
        return self._steps.make(key, lambda: self._capture(arguments, precision, trains), description)

    def _capture(self, arguments: Arguments, precision: Precision | None, trains: bool) -> WrappedStep:
        for name, leaf in named_leaves("inputs", arguments):
            check_leaf(name, leaf)
            if isinstance(leaf, FakeTensor):
                raise MembenchError("a wrapped module cannot be captured; pass the module that was wrapped")
            if isinstance(leaf, Tensor) and leaf.device != self.device:
                raise ShapeMismatch(f"{name} is on {leaf.device}, not on {self.device}; move it there")
        check_placement(self.module, self.device)
        workload = Workload(
            type(self.module).__name__,
            self.module,
            None,
            without_memory(arguments, self.module),
            precision=precision,
            gradients_from_caller=trains,
            runs_own_hooks=False,
        )
        captures = Captures(workload, self.device, runs_again=True)
        with torch.autocast(self.device.type, enabled=False):
            graph = graph_as_run(captures, self._cost, workload.batch_size, self.kernels)
            graph = replace(graph, weights_stay=self.device.type != "cpu")  # other calls use them there
            _check_objects(workload.inputs)
            strategy = self.strategy if graph.mode in self.strategy.modes else Eager()
            schedule = plan(graph, strategy, self._cost, self.budget_bytes)
        # what planning alone reads would otherwise be kept with the step
        schedule = replace(schedule, graph=replace(schedule.graph, plain=None))
        captured = replace(captures.at(workload.batch_size), graph=schedule.graph)
        if self.device.type != "cpu":
            if any(block.host_location for block in schedule.graph.blocks):
                raise UnsupportedStrategy(
                    f"strategy {schedule.strategy!r} keeps weights in host memory, where other calls of a wrapped "
                    "module would not find them; choose another one, or use membench.compile"
                )
            place_module(self.module, captured, real_backend(schedule, self.device))
        return WrappedStep(workload, captured, schedule, self.device, self._capturing)

    def _autocast(self) -> Precision | None:
        """Return the precision of the autocast that the caller runs in.

        Raises:
            MembenchError: it casts to neither of the two formats of half precision.
        """
        dtype = autocast_dtype(self.device.type)
        if dtype is None:
            return None
        known = {precision.autocast_dtype: precision for precision in (Precision.AMP_BF16, Precision.AMP_FP16)}
        if dtype not in known:
            raise MembenchError(f"autocast to {dtype} is not supported; cast to torch.bfloat16 or torch.float16")
        return known[dtype]

    def _description(self, arguments: Arguments, trains: bool) -> str:
        purpose = "with gradients" if trains else "without gradients"
        mode = "training" if self.module.training else "evaluation"
        return (
            f"a call of {type(self.module).__name__} {purpose}, in {mode} mode, with {described('inputs', arguments)}"
        )


def _check_objects(inputs: Arguments) -> None:
    """Refuse a module that has put tensors into an object among its inputs.

    Raises:
        UnsupportedModel: names the object.
    """
    for name, leaf in named_leaves("inputs", inputs):
        if not isinstance(leaf, Tensor) and tensors_in((opened(leaf),)):
            raise UnsupportedModel(
                name,
                f"the module puts tensors into this {type(leaf).__name__}, which a wrapped one would not do",
                "leave it out (use_cache=False), or compile the step with membench.compile",
            )
