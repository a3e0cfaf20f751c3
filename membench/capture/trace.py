"""Workload -> recorded tasks: run one step on fake tensors and write down every operator.

    with FakeTensorMode, Recorder:                 no data, no device memory, any size
        output = module(inputs)                    hooks on modules say which layer is running
        loss = workload.loss(output, targets)
        walk the autograd graph of the loss:       hooks on its nodes say which layer's backward is running
        gradients = autograd.grad(loss, weights)

A step of inference ends with the module's output, and autograd is off. Where the loss is the caller's, the backward
pass starts from the output.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from membench.capture.backward import backward_from_caller, backward_from_loss, own_gradients, separate_outputs
from membench.capture.gpu.gpu_programs import as_on_a_gpu
from membench.capture.gpu.virtual_gpu import AnyGpu, VirtualGpu
from membench.capture.module.callers_tensors import (
    InputObjects,
    argument_blocks,
    by_every_name,
    check_output,
    real_values,
    state_blocks,
)
from membench.capture.module.checkpoint import traced_regions
from membench.capture.module.compiled import compiled_functions_refused
from membench.capture.module.failures import failures_named
from membench.capture.module.fakes import Fakes
from membench.capture.module.hooks import traced_hooks
from membench.capture.module.loss_objects import loss_objects_kept
from membench.capture.operators.collectives import axes_of
from membench.capture.operators.flex_attention import Contents
from membench.capture.operators.functions import AsOperators, traced_kernels
from membench.capture.operators.fused_layers import fused_layers_in_parts
from membench.capture.operators.nested import check_keeps_padding
from membench.capture.recorder import Recorder
from membench.capture.recording import Recording
from membench.capture.state.executed_code import ExecutedCode
from membench.capture.state.module_state import check_gradient_hooks
from membench.capture.state.python_state import PythonState
from membench.capture.values.known_masks import known_masks
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Outputs
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, Role
from membench.core.libraries.garbage import without_collection
from membench.core.libraries.one_thread import in_this_thread
from membench.core.libraries.torch_contexts import (
    autocast,
    placements_chosen_unseen,
    swapped_tensors,
    without_saved_tensor_hooks,
    without_value_checks,
)
from membench.core.libraries.torch_fake_tensors import trace_fakes
from membench.core.libraries.torch_internals import is_wrapper_subclass, module_hooks, tree_map_only
from membench.core.step.arguments import call_with, tensors_in
from membench.core.step.opened import Opened, opened
from membench.core.step.stored import single_stored, stored_buffers, stored_weights
from membench.core.step.torch_settings import rounded_to_tf32
from membench.core.step.workload import Workload

Place = torch.device | AnyGpu | None
"""Where a step is to run; None: where its tensors are."""

ANY_GPU = AnyGpu()

_CPU = torch.device("cpu")
_CUDA = torch.device("cuda")


@dataclass(frozen=True)
class _Results:
    """What the recorded step returned, still referred to, so that it is not among what the step releases.

    Attributes:
        held: the module's output where the program holds it besides the loss.
        gradients: gradients of the trained weights, then of the inputs.
        completed: see `Recording`.
    """

    loss: Tensor | None
    output: Any
    held: Any
    output_gradients: list[tuple[Tensor, Tensor]]
    gradients: list[Tensor | None]
    completed: dict[str, int]


@dataclass(frozen=True)
class _GivenBlocks:
    """The blocks of the caller's tensors; see `Recording`."""

    weights: dict[str, int]
    buffers: dict[str, int]
    inputs: list[int | None]
    targets: list[int | None]

    @classmethod
    def of(cls, recorder: Recorder, fakes: Fakes, workload: Workload) -> "_GivenBlocks":
        """Record them."""
        weights, buffers = stored_weights(workload.module), stored_buffers(workload.module)
        return cls(
            state_blocks(recorder, fakes.stored_weights, Role.WEIGHT, weights),
            state_blocks(recorder, fakes.stored_buffers, Role.BUFFER, buffers),
            argument_blocks(recorder, "input", fakes.inputs, Role.INPUT, workload.inputs),
            argument_blocks(recorder, "target", fakes.targets, Role.LABEL, workload.targets),
        )


def record(
    workload: Workload,
    device: Place,
    seen: Mapping[Hashable, Outputs],
    *,
    uses_values: bool = False,
    code: ExecutedCode | None = None,
) -> Recording:
    """Trace one step of `workload` as it runs from its module's second call on.

    Args:
        device: the device whose kernels are recorded; see `capture`.
        seen: see `Recorder`.
        uses_values: see `capture`.
        code: gets the code of the program's functions that run.

    Raises:
        UnsupportedModel: the step depends on data, or cannot be expressed as a graph; names the layer. Or a weight's
            gradient has a hook.
        MembenchError: see `Workload.check_gradients_are_allowed`.
    """
    workload.check_gradients_are_allowed()
    if workload.loss is not None:
        weights = workload.module.named_parameters()
        check_gradient_hooks({name: each for name, each in weights if each.requires_grad})
    with PythonState(workload.module) as state, loss_objects_kept(workload.loss), without_collection():
        recording = _trace(workload, device, seen, state, uses_values, code)
        if state.change():  # for example, a first call that stores the size of its images
            state.drop_tensors()
            recording = _trace(workload, device, seen, state, uses_values, code)
        if changing := state.change():
            raise UnsupportedModel(
                changing,
                "it changes whenever the module is called, and a step would not change it",
                "store it in a buffer that is updated in place",
            )
    return recording


def _trace(
    workload: Workload,
    device: Place,
    seen: Mapping[Hashable, Outputs],
    state: PythonState,
    uses_values: bool,
    code: ExecutedCode | None,
) -> Recording:
    fake_mode = trace_fakes()
    # anomaly detection, which is on for all threads, would read the gradients' values, which fake tensors do not have
    with (
        fake_mode,
        torch.set_grad_enabled(workload.trains),
        torch.autograd.set_detect_anomaly(False) if torch.is_anomaly_enabled() else nullcontext(),
        without_saved_tensor_hooks(),
    ):
        gpu = VirtualGpu(device) if isinstance(device, AnyGpu) else None
        traced = _CUDA if isinstance(device, AnyGpu) else device
        rounded, axes = _rounded_products(workload.precision, gpu), axes_of(workload.module, workload.meshes)
        recorder = Recorder(fake_mode, seen, gpu, rounded, axes, code)
        fakes = Fakes.of(workload, fake_mode, traced)
        given = _GivenBlocks.of(recorder, fakes, workload)
        recorder.values = real_values(workload, recorder, fakes) if uses_values else None
        objects = InputObjects(recorder, fakes.inputs)
        with failures_named(workload, lambda: recorder.layer_name):
            with _recorded(workload, recorder, fakes, gpu, state):
                device_type = _device_type(workload, traced)
                results = _run(workload, recorder, fakes, gpu, device_type, code or nullcontext())
            fakes.check_frozen()
            if not recorder.depends_on_values:  # a graph of one batch does not run again
                state.check_tensors((*fakes.weights.values(), *fakes.buffers.values()))
            output = tree_map_only(Tensor, recorder.value, results.output)
            objects_after, given_up = objects.changes(output, trains=workload.trains)
        return _recording(recorder, fakes, given, results, output, objects_after, given_up)


@contextmanager
def _recorded(
    workload: Workload, recorder: Recorder, fakes: Fakes, gpu: VirtualGpu | None, state: PythonState
) -> Iterator[None]:
    """Record what runs."""
    with (
        recorder,
        compiled_functions_refused(workload, lambda: recorder.layer_name),
        as_on_a_gpu(lambda: recorder.layer_name) if gpu else nullcontext(),
        without_value_checks(),
        placements_chosen_unseen(),
        known_masks(recorder.is_known),
        fakes.carried.in_place(workload.module, recorder.carried),
        traced_hooks(workload.module, runs_own=workload.runs_own_hooks),
        _layer_hooks(workload.module, recorder, fakes, state),
        traced_kernels(gpu),
    ):
        yield


def _recording(
    recorder: Recorder,
    fakes: Fakes,
    given: _GivenBlocks,
    results: _Results,
    output: Any,
    objects_after: tuple[Opened, ...],
    given_up: frozenset[int],
) -> Recording:
    found = results.gradients
    gradients = [None if each is None else recorder.value(single_stored(each)) for each in found]
    named = zip(fakes.trained, found, strict=False)
    return Recording(
        blocks=recorder.blocks,
        tasks=recorder.tasks,
        layers=recorder.layers.names,
        constants=recorder.constants,
        loss=None if results.loss is None else recorder.value(single_stored(results.loss)),
        gradients=dict(zip(fakes.trained, gradients, strict=False)),
        completed=results.completed,
        wrappers={name: each for name, each in named if each is not None and is_wrapper_subclass(each)},
        output=output,
        held=frozenset(recorder.value(single_stored(each)).block for each in tensors_in(results.held)),
        output_gradients=[(recorder.value(of), recorder.value(each)) for of, each in results.output_gradients],
        input_gradients=gradients[len(fakes.trained) :] or [None for each in given.inputs if each is not None],
        releases=tuple(sorted(recorder.lifetimes.releases)),  # tensors of one task die in no fixed order
        numbers=tuple(recorder.lifetimes.numbers),
        sums=frozenset(recorder.sums),
        stopped=frozenset(recorder.stopped),
        on_cpu=fakes.are_on_cpu,
        weights=given.weights,
        buffers=given.buffers,
        inputs=given.inputs,
        targets=given.targets,
        depends_on_values=recorder.depends_on_values,
        objects_after=objects_after,
        given_up=given_up,
    )


def _run(
    workload: Workload,
    recorder: Recorder,
    fakes: Fakes,
    gpu: VirtualGpu | None,
    device_type: str,
    code: AbstractContextManager[Any],
) -> _Results:
    """Run the step; see the module's docstring."""
    if gpu:
        gpu.own(fakes.trained.values())
    given = fakes.given() if workload.trains else []  # without gradients an object may let go of its tensors
    leaves = [*fakes.trained.values(), *tensors_in(opened(fakes.inputs))] if workload.trains else []
    completed: dict[str, int] = {}

    def complete(_: Tensor, name: str) -> None:
        completed[name] = len(recorder.tasks)

    for name, weight in fakes.trained.items():
        weight.register_post_accumulate_grad_hook(partial(complete, name=name))
    tensors = by_every_name(workload.module, {**fakes.weights, **fakes.buffers})
    functions = partial(_functions, workload.module, gpu, recorder.contents)
    with ExitStack() as step:
        step.enter_context(swapped_tensors(workload.module, tensors))
        step.enter_context(traced_regions(recorder, gpu, functions))
        with functions(), _autocast(workload.precision, device_type), code:
            loss, output, held = _forward(workload, recorder, fakes, given)
        with code:
            pairs = _backward(workload, recorder, loss, output, given)
    gradients = own_gradients(leaves, [gradient for _, gradient in pairs])
    return _Results(loss, output, held, pairs, gradients, completed)


@contextmanager
def _functions(module: nn.Module, gpu: VirtualGpu | None, contents: Contents) -> Iterator[None]:
    """Trace functions and fused layers in the forms that a schedule can run."""
    with AsOperators(gpu, contents), nullcontext() if gpu else fused_layers_in_parts(module):
        yield


def _backward(
    workload: Workload, recorder: Recorder, loss: Any, output: Any, given: list[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Run the backward pass, if there is one; see `backward_from_caller` for what is returned."""
    if workload.loss is not None:
        backward_from_loss(recorder, loss, workload.loss_scale)
    elif workload.trains:
        return backward_from_caller(recorder, output, given)
    return []


def _forward(workload: Workload, recorder: Recorder, fakes: Fakes, given: list[Tensor]) -> tuple[Any, Any, Any]:
    """Return the loss or else the module's output, and the output that the program holds besides a loss."""
    output = call_with(workload.module, fakes.inputs)
    if workload.loss is not None:
        recorder.layers.enter_loss("loss")
        held = opened(output) if workload.holds_output else None
        return call_with(workload.loss, fakes.targets, output), None, held
    output = opened(output)
    check_output(output)
    return None, separate_outputs(output, given) if workload.trains else output, None


def _rounded_products(precision: Precision | None, gpu: VirtualGpu | None) -> frozenset[Kind]:
    """Return the products that run in TF32 on GPUs that have it; without a precision, as torch's switches are set."""
    if precision is Precision.TF32:
        return frozenset({Kind.CONVOLUTION, Kind.LINEAR})
    return rounded_to_tf32() if precision is None and gpu is not None else frozenset()


def _device_type(workload: Workload, device: torch.device | None) -> str:
    """Return the type of the device that the step is traced on; see `Fakes`."""
    if device is None:
        device = next((tensor.device for tensor in tensors_in(workload.inputs)), _CPU)
    return "cpu" if device.type == "meta" else device.type


@contextmanager
def _autocast(precision: Precision | None, device_type: str) -> Iterator[None]:
    """Cast the forward pass and the loss, as a program does that runs its backward pass outside of `torch.autocast`."""
    if precision is None or precision.autocast_dtype is None:
        yield
        return
    with autocast(device_type, precision.autocast_dtype):
        yield


@contextmanager
def _layer_hooks(module: nn.Module, recorder: Recorder, fakes: Fakes, state: PythonState) -> Iterator[None]:
    paths, memory = {id(layer): path for path, layer in module.named_modules()}, fakes.memory()
    hooked = [layer for layer in module.modules() if any(module_hooks(layer)[:2])]
    encoders = [layer for layer in module.modules() if isinstance(layer, nn.TransformerEncoder)]

    @in_this_thread
    def enter(layer: nn.Module, *_: Any) -> None:
        state.enter(layer)
        recorder.layers.enter_module(paths[id(layer)], is_leaf=not any(True for _ in layer.children()))

    @in_this_thread
    def leave(layer: nn.Module, *_: Any) -> None:
        recorder.layers.leave_module()
        if layer is module:
            fakes.check_members(module, memory)

    def check_padding(encoder: nn.TransformerEncoder, args: Any, kwargs: Any) -> None:
        check_keeps_padding(recorder.layer_name, encoder, args, kwargs)

    others = paths.keys() - set(map(id, hooked))
    with ExitStack() as hooks:
        for layer in hooked:
            hooks.enter_context(layer.register_forward_pre_hook(enter))
            hooks.enter_context(layer.register_forward_hook(leave))
        # not hooks of these layers: a layer with hooks does not choose its fused operator
        hooks.enter_context(register_module_forward_pre_hook(_of_layers(others, enter)))
        hooks.enter_context(register_module_forward_hook(_of_layers(others, leave)))
        for encoder in encoders:
            hooks.enter_context(encoder.register_forward_pre_hook(check_padding, with_kwargs=True))
        yield


def _of_layers(layers: Set[int], hook: Callable[..., None]) -> Callable[..., None]:
    return lambda layer, *rest: hook(layer, *rest) if id(layer) in layers else None
