"""Workload -> recorded tasks: run one step on fake tensors and write down every operator.

    with FakeTensorMode, Recorder:                 no data, no device memory, any size
        output = module(inputs)                    hooks on modules say which layer is running
        loss = workload.loss(output, targets)
        walk the autograd graph of the loss:       each node will say which layer's backward is running
        gradients = autograd.grad(loss, weights)

A step of inference ends with the module's output, and autograd is off. A dispatch mode sees each operator after autograd, forward and backward alike. What shares a storage is one
block; a view makes no task. The backward of a convolution is issued as two calls, weight gradient first.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from membench.capture import operators
from membench.capture.functions import AsOperators
from membench.errors import UnsupportedModel
from membench.task_graph import Block, Call, Phase, Role, ShapeOf, Task, Value, values_in
from membench.workload import Workload


@dataclass(frozen=True)
class Recording:
    """The step as it was issued.

    Attributes:
        constants: tensors that the model made or holds outside its parameters and buffers, by block.
        loss: None in a step of inference.
        gradients: `Value` of each trained weight's gradient, None where the loss does not depend on it.
        output: of a step of inference, with `Value` in place of tensors.
        weights, buffers, inputs, targets: blocks in the order of the module's and the workload's tensors.
    """

    blocks: list[Block]
    tasks: list[Task]
    layers: list[str]
    constants: dict[int, Tensor]
    loss: Value | None
    gradients: dict[str, Value | None]
    output: Any
    weights: dict[str, int]
    buffers: dict[str, int]
    inputs: list[int | None]
    targets: list[int | None]


class Recorder(TorchDispatchMode):
    """Records blocks, tasks and layers while a step runs on fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.tasks: list[Task] = []
        self.layers: list[str] = []
        self.constants: dict[int, Tensor] = {}
        self.phase = Phase.FORWARD
        self._constant_layers: dict[int, str] = {}
        self._block_of_storage: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps storages, whose addresses are the keys, from being reused
        self._module_path: list[str] = [""]
        self._leaf_layer: int | None = None
        self._layer_uses: Counter[str] = Counter()
        self._layer = -1
        self._layer_of_node: dict[int, int] = {}

    # ---- layers -------------------------------------------------------------------------------------

    def enter_module(self, path: str, is_leaf: bool) -> None:
        """Note which module runs.

        Raises:
            UnsupportedModel: it runs in the backward pass, on its own weights and buffers in place of the traced ones.
        """
        if self.phase is Phase.BACKWARD:
            raise UnsupportedModel(
                path,
                "the backward pass calls it again, as torch.utils.checkpoint does",
                "leave recomputation to a strategy, memonger for one",
            )
        self._module_path.append(path)
        if is_leaf and self.phase is Phase.FORWARD:
            self._leaf_layer = self._layer = self._new_layer(path)

    def leave_module(self) -> None:
        self._module_path.pop()
        self._leaf_layer = None

    def enter_loss(self) -> None:
        self.phase = Phase.LOSS
        self._leaf_layer = self._layer = self._new_layer("loss")

    def enter_backward(self, loss: Tensor) -> None:
        """Have every autograd node announce its layer when it runs.

        Raises:
            UnsupportedModel: the loss depends on a trained tensor that is no parameter of the module.
        """
        self.phase = Phase.BACKWARD
        known = sorted(self._layer_of_node)
        for node in _autograd_nodes(loss):
            if (reader := self._constant_layers.get(id(getattr(node, "variable", None)))) is not None:
                raise UnsupportedModel(
                    reader,
                    "it trains a tensor that is no parameter of the module",
                    "make it one, or detach it",
                )
            position = bisect_right(known, node._sequence_nr()) - 1
            layer = self._layer_of_node[known[position]] if position >= 0 else self._layer
            node.register_prehook(lambda _, layer=layer: self._set_layer(layer))

    def _set_layer(self, layer: int) -> None:
        self._layer = layer

    def _new_layer(self, name: str) -> int:
        self._layer_uses[name] += 1
        uses = self._layer_uses[name]
        self.layers.append(name if uses == 1 else f"{name}#{uses}")
        return len(self.layers) - 1

    @property
    def layer_name(self) -> str:
        """The layer that runs now, for error messages."""
        return (
            self.layers[self._layer] if self._leaf_layer is not None else self._module_path[-1] or "the model"
        )

    # ---- blocks -------------------------------------------------------------------------------------

    def external(self, name: str, tensor: Tensor, role: Role) -> int:
        """Record a block that belongs to the caller; tensors that share a storage share it."""
        key = tensor.untyped_storage()._cdata
        if key not in self._block_of_storage:
            self._add_block(name, tensor, role, layer=-1)
        return self._block_of_storage[key]

    def value(self, tensor: Tensor) -> Value:
        key = tensor.untyped_storage()._cdata
        if key not in self._block_of_storage:  # a tensor that is neither parameter, buffer nor argument
            self.constants[self.external(f"constant{len(self.constants)}", tensor, Role.CONSTANT)] = tensor
            self._constant_layers[id(tensor)] = self.layer_name
        return Value(
            self._block_of_storage[key],
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
        )

    def _add_block(self, name: str, tensor: Tensor, role: Role, layer: int) -> int:
        storage = tensor.untyped_storage()
        index = len(self.blocks)
        self.blocks.append(Block(index, name, storage.nbytes(), role, layer))
        self._block_of_storage[storage._cdata] = index
        self._alive.append(storage)
        return index

    # ---- operators ----------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.phase is not Phase.BACKWARD:
            self._layer_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, self._layer)
        if func is torch.ops.aten.convolution_backward.default and args[10][0] and any(args[10][1:]):
            _, *weight_gradients = self._run(func, (*args[:10], [False, *args[10][1:]]), kwargs)
            data_gradient, _, _ = self._run(func, (*args[:10], [True, False, False]), kwargs)
            return data_gradient, *weight_gradients
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            output = func(*args, **kwargs)
            self._share(output, self.value(args[0]).block)
            return output
        output = operators.with_real_outputs(func, args, func(*args, **kwargs))
        aliased = operators.aliased_argument(func)
        if aliased is not None and isinstance(args[aliased], Tensor):
            block = self.value(args[aliased]).block
            for view in tree_leaves(output):
                self._share(view, block)
            return output
        outputs = list(output) if isinstance(output, tuple | list) else [output]
        if any(isinstance(out, Tensor) and out.layout is not torch.strided for out in outputs):
            raise UnsupportedModel(
                self.layer_name, f"{func} makes a sparse tensor", "use dense ones, as with sparse=False"
            )
        created = [isinstance(out, Tensor) and self._is_new(out) for out in outputs]
        written = operators.written_arguments(func, args, kwargs)
        if any(created) or written:
            self._record(func, args, kwargs, output, outputs, created, written)
        return output

    def _is_new(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata not in self._block_of_storage

    def _share(self, tensor: Tensor, block: int) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._block_of_storage:
            self._block_of_storage[storage._cdata] = block
            self._alive.append(storage)

    def _record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        outputs: list[Any],
        created: list[bool],
        written: list[Tensor],
    ) -> None:
        name = operators.operator_name(func)
        if (
            self._leaf_layer is None and self.phase is Phase.FORWARD
        ):  # a functional call is a layer of its own
            path = self._module_path[-1]
            self._layer = self._new_layer(f"{path}.{name}" if path else name)
        shape_only = operators.shape_only_arguments(func, args)
        recorded_args = tuple(
            ShapeOf(self.value(arg)) if i in shape_only and isinstance(arg, Tensor) else self._convert(arg)
            for i, arg in enumerate(args)
        )
        recorded_kwargs = tuple((key, self._convert(value)) for key, value in kwargs.items())
        reads = [value.block for value in values_in((recorded_args, recorded_kwargs))]
        writes = [self.value(argument).block for argument in written]
        creates, values = [], []
        layer_name = self.layers[self._layer]
        role = Role.GRADIENT if self.phase is Phase.BACKWARD else Role.ACTIVATION
        for position, (out, is_new) in enumerate(zip(outputs, created, strict=True)):
            if is_new and self._is_new(out):
                suffix = f".{position}" if len(outputs) > 1 else ""
                creates.append(self._add_block(f"{layer_name}:{name}{suffix}", out, role, self._layer))
            values.append(self.value(out) if is_new else None)
        self.tasks.append(
            Task(
                index=len(self.tasks),
                name=f"{layer_name}:{name}",
                kind=operators.kind_of(func),
                phase=self.phase,
                layer=self._layer,
                reads=tuple(dict.fromkeys((*reads, *writes))),
                writes=tuple(dict.fromkeys((*writes, *creates))),
                creates=tuple(creates),
                operations=operators.floating_point_operations(func, args, kwargs, output),
                moved_bytes=sum(v.extent_bytes for v in values_in((recorded_args, tuple(values)))),
                gradient_of=operators.gradient_of(func, args) if self.phase is Phase.BACKWARD else None,
                random=operators.is_random(func),
                convolution=operators.convolution_of(func, args, output),
                call=Call(str(func), recorded_args, recorded_kwargs, tuple(values)),
            )
        )

    def _convert(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.value(argument)
        if isinstance(argument, list | tuple):
            return tuple(self._convert(item) for item in argument)
        return argument


def _autograd_nodes(loss: Tensor) -> Iterable[Any]:
    seen, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(following for following, _ in node.next_functions)
    return seen


def record(workload: Workload, device: torch.device | None) -> Recording:
    """Trace one step of `workload`.

    Args:
        device: whose kernels are recorded; see `capture`.

    Raises:
        UnsupportedModel: the step depends on data, or does what a graph cannot express; names the layer.
    """
    recorder = Recorder()
    module = workload.module
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    trains = workload.loss is not None
    fake = partial(_fake, device=device)
    with fake_mode, torch.set_grad_enabled(trains):
        weights = {n: fake(p, requires_grad=trains and p.requires_grad) for n, p in module.named_parameters()}
        buffers = {name: fake(b) for name, b in module.named_buffers()}
        inputs = tuple(fake(item) if isinstance(item, Tensor) else item for item in workload.inputs)
        targets = tuple(fake(item) if isinstance(item, Tensor) else item for item in workload.targets)
        weight_blocks = {name: recorder.external(name, t, Role.WEIGHT) for name, t in weights.items()}
        buffer_blocks = {name: recorder.external(name, t, Role.BUFFER) for name, t in buffers.items()}
        input_blocks = [_argument(recorder, f"input{i}", t, Role.INPUT) for i, t in enumerate(inputs)]
        target_blocks = [_argument(recorder, f"target{i}", t, Role.LABEL) for i, t in enumerate(targets)]
        try:
            with recorder, AsOperators(), _layer_hooks(module, recorder, buffers), _attributes_kept(module):
                tensors = _by_every_name(module, {**weights, **buffers})
                output = torch.func.functional_call(module, tensors, inputs, tie_weights=False)
                loss, gradients = None, {}
                if workload.loss is not None:
                    recorder.enter_loss()
                    loss = workload.loss(output, *targets)
                    gradients = _gradients(recorder, loss, weights, workload.weight)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            _refuse(recorder, f"its operators depend on the values of tensors ({error.func})", error)
        except UnsupportedOperatorException as error:
            _refuse(recorder, f"operator {error.func} has no shape function", error)
        recorded_loss = None if loss is None else recorder.value(loss)
        gradient_values = {n: None if g is None else recorder.value(g) for n, g in gradients.items()}
        recorded_output = None if trains else tree_map_only(Tensor, recorder.value, output)
    return Recording(
        blocks=recorder.blocks,
        tasks=recorder.tasks,
        layers=recorder.layers,
        constants=recorder.constants,
        loss=recorded_loss,
        gradients=gradient_values,
        output=recorded_output,
        weights=weight_blocks,
        buffers=buffer_blocks,
        inputs=input_blocks,
        targets=target_blocks,
    )


def _by_every_name(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by all names that tied weights have; a module that stands in several places is named once.

    ``functional_call`` could tie weights itself, but would leave our tensors behind in a module with two names.
    """
    ours = {id(t): tensors[name] for name, t in (*module.named_parameters(), *module.named_buffers())}
    return {
        name: ours[id(tensor)]
        for path, child in module.named_modules()
        for named in (child.named_parameters, child.named_buffers)
        for name, tensor in named(path, recurse=False, remove_duplicate=False)
    }


def _refuse(recorder: Recorder, cause: str, error: Exception) -> NoReturn:
    remedy = "write it without reading tensor values in Python, or with operators of fixed output shape"
    raise UnsupportedModel(recorder.layer_name, cause, remedy) from error


def _argument(recorder: Recorder, name: str, argument: Any, role: Role) -> int | None:
    return recorder.external(name, argument, role) if isinstance(argument, Tensor) else None


def _fake(tensor: Tensor, *, device: torch.device | None, requires_grad: bool = False) -> Tensor:
    """Return a fake tensor of the same shape, strides and dtype; one on the meta device is traced as on the CPU.

    The device decides which kernels are recorded: batch norm is cuDNN's on CUDA.
    """
    if device is None:
        device = torch.device("cpu") if tensor.is_meta else tensor.device
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device, requires_grad=requires_grad
    )


def _gradients(
    recorder: Recorder, loss: Tensor, weights: dict[str, Tensor], loss_weight: float
) -> dict[str, Tensor | None]:
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    if not isinstance(loss, Tensor) or loss.dim() != 0 or loss.grad_fn is None:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UnsupportedModel(
            "loss",
            f"it returns {shape} and not a scalar that depends on the weights",
            "return a mean or a sum",
        )
    recorder.enter_backward(loss)
    with torch.autograd.set_multithreading_enabled(False):  # the recorder hears this thread alone
        seed = None if loss_weight == 1 else torch.full_like(loss, loss_weight)
        found = torch.autograd.grad(loss, list(trained.values()), seed, allow_unused=True)
    results: dict[str, Tensor | None] = {}
    taken: set[int] = set()
    for name, gradient in zip(trained, found, strict=True):
        if gradient is not None and _needs_own_storage(gradient, taken):
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        if gradient is not None:
            taken.add(gradient.untyped_storage()._cdata)
        results[name] = gradient
    return results


def _needs_own_storage(gradient: Tensor, taken: set[int]) -> bool:
    storage = gradient.untyped_storage()
    return storage._cdata in taken or storage.nbytes() != gradient.numel() * gradient.itemsize


@contextmanager
def _layer_hooks(module: nn.Module, recorder: Recorder, buffers: dict[str, Tensor]) -> Iterator[None]:
    def check_buffers(*_: Any) -> None:
        for name, buffer in module.named_buffers():
            if buffers.get(name) is not buffer:
                raise UnsupportedModel(name, "it replaces a buffer", "update the buffer in place")

    handles = [module.register_forward_hook(check_buffers)]
    for path, child in module.named_modules():
        is_leaf = not any(True for _ in child.children())
        handles.append(
            child.register_forward_pre_hook(lambda *_, p=path, leaf=is_leaf: recorder.enter_module(p, leaf))
        )
        handles.append(child.register_forward_hook(lambda *_: recorder.leave_module()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Let the trace leave no fake tensor in a module's attributes.

    Raises:
        UnsupportedModel: the module keeps a tensor in an attribute that is no buffer; it would be the same in each step.
    """
    before = [(path, vars(child), dict(vars(child))) for path, child in module.named_modules()]
    kept = []
    try:
        yield
    finally:
        for path, attributes, values in before:
            for name in [name for name, value in attributes.items() if isinstance(value, FakeTensor)]:
                kept.append(f"{path}.{name}" if path else name)
                del attributes[name]
                attributes.update({name: values[name]} if name in values else {})
    if kept:
        raise UnsupportedModel(
            kept[0],
            "it is a tensor that the module keeps",
            "return it, or hold it in a buffer that changes in place",
        )
