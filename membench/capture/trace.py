"""Workload -> recorded tasks: run one step on fake tensors and write down every operator.

    with FakeTensorMode, Recorder:                 no data, no device memory, any size
        output = module(inputs)                    hooks on modules say which layer is running
        loss = workload.loss(output, targets)
        walk the autograd graph of the loss:       hooks on its nodes say which layer's backward is running
        gradients = autograd.grad(loss, weights)

A step of inference ends with the module's output, and autograd is off. Where the loss is the caller's, the backward pass
starts from the output.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from membench.capture.backward import (
    backward_from_caller,
    backward_from_loss,
    own_gradients,
    separate_outputs,
)
from membench.capture.checkpoint import traced_regions
from membench.capture.compiled import compiled_functions_refused
from membench.capture.failures import VALUE_READ, cause_without_data
from membench.capture.fakes import Fakes
from membench.capture.functions import AsOperators
from membench.capture.fused_layers import fused_layers_in_parts
from membench.capture.gpu_programs import as_on_a_gpu
from membench.capture.hooks import traced_hooks
from membench.capture.known_masks import known_masks
from membench.capture.lifetimes import KeptNumber
from membench.capture.loss_objects import loss_objects_kept
from membench.capture.module_state import check_gradient_hooks
from membench.capture.nested import check_keeps_padding
from membench.capture.python_state import PythonState
from membench.capture.random_state import RandomState
from membench.capture.recorder import Recorder
from membench.capture.virtual_gpu import VirtualGpu
from membench.core.arguments import Arguments, call_with, tensors_in
from membench.core.call import Outputs, Value
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.garbage import without_collection
from membench.core.precision import Precision
from membench.core.task_graph import Block, Kind, Role, Task
from membench.core.torch_internals import (
    FAKE_TENSOR_LOGGER,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
    autocast,
    module_hooks,
    swapped_tensors,
    tree_leaves,
    tree_map_only,
    without_saved_tensor_hooks,
    without_value_checks,
)
from membench.core.workload import Workload

ANY_GPU = torch.device("cuda")
"""A GPU that this machine does not need to have; a GPU of this machine has an index."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recording:
    """The step as it was issued.

    Attributes:
        constants: tensors that the model made, or holds outside its parameters and buffers, by block.
        loss: None in a step that returns the module's output.
        gradients: `Value` of each trained weight's gradient, None where the loss does not depend on it.
        output: of the module with `Value` in place of tensors, in a step that returns it.
        output_gradients, input_gradients: see `TaskGraph`.
        weights, buffers: blocks by qualified name.
        inputs, targets: blocks in the order of the workload's arguments; see `CapturedStep`.
        releases, numbers: see `Lifetimes`.
        sums, stopped: see `Recorder`.
        on_cpu: whether the kernels are the CPU's.
    """

    blocks: list[Block]
    tasks: list[Task]
    layers: list[str]
    constants: dict[int, Tensor]
    loss: Value | None
    gradients: dict[str, Value | None]
    output: Any
    output_gradients: list[tuple[Value, Value]]
    input_gradients: list[Value | None]
    weights: dict[str, int]
    buffers: dict[str, int]
    inputs: list[int | None]
    targets: list[int | None]
    releases: tuple[tuple[int, int], ...]
    numbers: tuple[KeptNumber, ...]
    sums: frozenset[int]
    stopped: frozenset[int]
    on_cpu: bool


@dataclass(frozen=True)
class _Results:
    """What the recorded step returned, still referred to, so that it is not among what the step releases.

    Attributes:
        gradients: of the trained weights, then of the inputs.
    """

    loss: Tensor | None
    output: Any
    output_gradients: list[tuple[Tensor, Tensor]]
    gradients: list[Tensor | None]


def record(workload: Workload, device: torch.device | None, seen: Mapping[Hashable, Outputs]) -> Recording:
    """Trace one step of `workload` as it runs from its module's second call on.

    Args:
        device: the device whose kernels are recorded; see `capture`.
        seen: see `Recorder`.

    Raises:
        UnsupportedModel: the step depends on data, or cannot be expressed as a graph; names the layer. Or a weight's gradient
            has a hook.
        MembenchError: see `Workload.check_gradients_are_allowed`.
    """
    workload.check_gradients_are_allowed()
    if workload.loss is not None:
        weights = workload.module.named_parameters()
        check_gradient_hooks((name, each) for name, each in weights if each.requires_grad)
    with PythonState(workload.module) as state, loss_objects_kept(workload.loss), without_collection():
        recording = _trace(workload, device, seen, state)
        if state.change():  # for example, a first call that stores the size of its images
            recording = _trace(workload, device, seen, state)
        if changing := state.change():
            raise UnsupportedModel(
                changing,
                "it changes whenever the module is called, and a step would not change it",
                "store it in a buffer that is updated in place",
            )
    return recording


def _trace(
    workload: Workload, device: torch.device | None, seen: Mapping[Hashable, Outputs], state: PythonState
) -> Recording:
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    # anomaly detection would read the gradients' values, which fake tensors do not have
    with (
        RandomState() as random_state,
        fake_mode,
        torch.set_grad_enabled(workload.trains),
        torch.autograd.set_detect_anomaly(False),
        without_saved_tensor_hooks(),
    ):
        gpu = VirtualGpu() if device == ANY_GPU else None
        recorder = Recorder(fake_mode, seen, random_state, gpu, _rounded_products(workload.precision, gpu))
        fakes = Fakes.of(workload, fake_mode, device)
        weight_blocks = {name: recorder.external(name, t, Role.WEIGHT) for name, t in fakes.weights.items()}
        buffer_blocks = {name: recorder.external(name, t, Role.BUFFER) for name, t in fakes.buffers.items()}
        input_blocks = _argument_blocks(recorder, "input", fakes.inputs, Role.INPUT)
        target_blocks = _argument_blocks(recorder, "target", fakes.targets, Role.LABEL)
        with _failures_named(workload, recorder):
            with (
                recorder,
                compiled_functions_refused(workload.module, lambda: recorder.layer_name),
                as_on_a_gpu(lambda: recorder.layer_name) if gpu else nullcontext(),
                without_value_checks(),
                known_masks(recorder.is_known),
                traced_hooks(workload.module, runs_own=workload.runs_own_hooks),
                _layer_hooks(workload.module, recorder, fakes, state),
            ):
                results = _run(workload, recorder, fakes, random_state, gpu, _device_type(workload, device))
            state.check_tensors((*fakes.weights.values(), *fakes.buffers.values()))
            fakes.check_frozen()
            random_state.check("the model")
        pairs, found = results.output_gradients, results.gradients
        gradients = [None if gradient is None else recorder.value(gradient) for gradient in found]
        return Recording(
            blocks=recorder.blocks,
            tasks=recorder.tasks,
            layers=recorder.layers.names,
            constants=recorder.constants,
            loss=None if results.loss is None else recorder.value(results.loss),
            gradients=dict(zip(fakes.trained, gradients, strict=False)),
            output=tree_map_only(Tensor, recorder.value, results.output),
            output_gradients=[(recorder.value(each), recorder.value(gradient)) for each, gradient in pairs],
            input_gradients=gradients[len(fakes.trained) :],
            releases=tuple(sorted(recorder.lifetimes.releases)),  # tensors of one task die in no fixed order
            numbers=tuple(recorder.lifetimes.numbers),
            sums=frozenset(recorder.sums),
            stopped=frozenset(recorder.stopped),
            on_cpu=fakes.are_on_cpu,
            weights=weight_blocks,
            buffers=buffer_blocks,
            inputs=input_blocks,
            targets=target_blocks,
        )


def _run(
    workload: Workload,
    recorder: Recorder,
    fakes: Fakes,
    random_state: RandomState,
    gpu: VirtualGpu | None,
    device_type: str,
) -> _Results:
    """Run the step; see the module's docstring."""
    if gpu:
        gpu.own(fakes.trained.values())
    given = fakes.given()
    tensors = _by_every_name(workload.module, {**fakes.weights, **fakes.buffers})
    functions = partial(_functions, workload.module, gpu)
    with ExitStack() as step:
        step.enter_context(swapped_tensors(workload.module, tensors))
        step.enter_context(traced_regions(recorder, random_state, gpu, functions))
        with functions(), _autocast(workload.precision, device_type):
            loss, output = _forward(workload, recorder, fakes, given)
        pairs = _backward(workload, recorder, loss, output, given)
    leaves = [*fakes.trained.values(), *tensors_in(fakes.inputs)]
    gradients = own_gradients(leaves, [gradient for _, gradient in pairs])
    return _Results(loss, output, pairs, gradients)


@contextmanager
def _functions(module: nn.Module, gpu: VirtualGpu | None) -> Iterator[None]:
    """Trace functions and fused layers in the forms that a schedule can run."""
    with AsOperators(gpu), nullcontext() if gpu else fused_layers_in_parts(module):
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


def _forward(
    workload: Workload,
    recorder: Recorder,
    fakes: Fakes,
    given: list[Tensor],
) -> tuple[Any, Any]:
    """Return the loss, or else the module's output; the output that a loss was made of is gone then, as in a caller's loop."""
    output = call_with(workload.module, fakes.inputs)
    if workload.loss is not None:
        recorder.layers.enter_loss("loss")
        return call_with(workload.loss, fakes.targets, output), None
    _check_output(output)
    return None, separate_outputs(output, given) if workload.trains else output


def _rounded_products(precision: Precision | None, gpu: VirtualGpu | None) -> frozenset[Kind]:
    """Return the products that run in TF32: by torch's default convolutions on GPUs that have it."""
    if precision is Precision.TF32:
        return frozenset({Kind.CONVOLUTION, Kind.LINEAR})
    is_default = precision is None and gpu is not None
    return frozenset({Kind.CONVOLUTION}) if is_default else frozenset()


def _device_type(workload: Workload, device: torch.device | None) -> str:
    """Return the type of the device that the step is traced on; see `_fake`."""
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


def _by_every_name(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by all names that tied weights have; a module that is used in several places is named once.

    `swapped_tensors` could tie weights itself, but would leave traced tensors in a module that has two names.
    """
    traced = {id(t): tensors[name] for name, t in (*module.named_parameters(), *module.named_buffers())}
    return {
        name: traced[id(tensor)]
        for path, child in module.named_modules()
        for named in (child.named_parameters, child.named_buffers)
        for name, tensor in named(path, recurse=False, remove_duplicate=False)
    }


def _check_output(output: Any) -> None:
    for leaf in tree_leaves(output):
        if not isinstance(leaf, Tensor) and type(leaf).__module__ not in ("builtins", "torch"):
            raise UnsupportedModel(
                "output",
                f"torch's pytree cannot open a {type(leaf).__name__}",
                "return tensors, or tuples, lists or dicts of tensors, or register it: torch.export.register_dataclass; networks of "
                "transformers leave their cache out with config.use_cache = False",
            )


@contextmanager
def _failures_named(workload: Workload, recorder: Recorder) -> Iterator[None]:
    """Turn any exception of a module, its loss or torch into an UnsupportedModel that names the layer."""
    logger = logging.getLogger(FAKE_TENSOR_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # torch would log the traceback of an error that is raised as well
    try:
        yield
    except DataDependentOutputException as error:
        raise UnsupportedModel(recorder.layer_name, *VALUE_READ) from error
    except DynamicOutputShapeException as error:
        raise UnsupportedModel(
            recorder.layer_name,
            f"the shape of what {error.func} returns depends on the values of tensors",
            "use operators whose results have one shape, such as torch.where with three arguments",
        ) from error
    except UnsupportedOperatorException as error:
        raise UnsupportedModel(
            recorder.layer_name,
            f"operator {error.func} has no shape function",
            "register a fake implementation (torch.library), or replace the operator",
        ) from error
    except MembenchError:
        raise
    except Exception as error:
        raise UnsupportedModel(recorder.layer_name, *_failure(workload, error)) from error
    finally:
        logger.setLevel(level)


def _failure(workload: Workload, error: Exception) -> tuple[str, str]:
    """Return the cause and the remedy of a module's failure on tensors without data."""
    message = (str(error).strip() or type(error).__name__).splitlines()[0]
    if (known := cause_without_data(message)) is not None:
        return known
    cause = f"it does not run on {workload.batch_size} samples without data: {message}"
    if workload.accumulates:
        return cause, "raise the budget, or give a larger micro-batch"
    return cause, "give a batch on which the module runs, and compute only with torch's operators"


def _argument_blocks(recorder: Recorder, name: str, arguments: Arguments, role: Role) -> list[int | None]:
    return [
        recorder.external(f"{name}{position}", leaf, role) if isinstance(leaf, Tensor) else None
        for position, leaf in enumerate(tree_leaves(arguments))
    ]


@contextmanager
def _layer_hooks(module: nn.Module, recorder: Recorder, fakes: Fakes, state: PythonState) -> Iterator[None]:
    paths, memory = {id(layer): path for path, layer in module.named_modules()}, fakes.memory()
    hooked = [layer for layer in module.modules() if any(module_hooks(layer)[:2])]
    encoders = [layer for layer in module.modules() if isinstance(layer, nn.TransformerEncoder)]

    def enter(layer: nn.Module, *_: Any) -> None:
        state.enter(layer)
        recorder.layers.enter_module(paths[id(layer)], is_leaf=not any(True for _ in layer.children()))

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
