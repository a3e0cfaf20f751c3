"""Recorder: every operator of a step that runs on fake tensors becomes a task.

A dispatch mode sees each operator below autograd, in the forward and the backward pass. Tensors that share a storage
are one block; a view is not a task. The backward of a convolution is issued as two calls, weight gradient first.
"""

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from membench.capture.call_checks import check_call, check_dense, check_size_is_kept
from membench.capture.gpu.gpu_programs import refuse_copy_to_host
from membench.capture.gpu.virtual_gpu import VirtualGpu
from membench.capture.layers import Layers
from membench.capture.lifetimes import Lifetimes
from membench.capture.operation import (
    Operation,
    as_list,
    as_seen,
    call_key,
    layout_of,
    operation_of,
    with_layout_changed,
    with_strides_of_views,
    without_values,
)
from membench.capture.operators import aten
from membench.capture.operators.backward_nodes import autograd_nodes
from membench.capture.operators.collectives import collective_of, is_wait
from membench.capture.operators.library_kernels import parts_of
from membench.capture.operators.real_outputs import with_real_outputs
from membench.capture.state.executed_code import ExecutedCode, PausingMode
from membench.capture.values.callers_memory import CallersMemory, whole_of
from membench.capture.values.known_values import evaluate, is_known
from membench.capture.values.real_values import RealValues
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Call, Outputs, ShapeOf, Value, signature, values_in
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task
from membench.core.libraries.torch_fake_tensors import DEVICE_OF, are_fake
from membench.core.libraries.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    storage_address,
    tree_leaves,
    tree_map_only,
    view_base,
)

_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_LIFT_FRESH, _DETACH = torch.ops.aten.lift_fresh.default, torch.ops.aten.detach.default


class Recorder(PausingMode):
    """Records blocks, tasks and layers while a step runs.

    Args:
        fake_mode: the mode under which the step runs.
        seen: layouts of outputs on the device, by the signature of a call, where they differ from its shape function's.
        gpu: a GPU that this machine does not need to have; None: the tensors' device is one of this machine's.
        tf32: kinds of products whose factors are rounded from single precision to TF32.
        axes: axes of the mesh by the names of their groups of ranks; see `axes_of`.
        code: the functions of the step's program; paused while an operator is recorded.

    Attributes:
        lifetimes: lifetimes of blocks; only constants are kept alive.
        made_anew: constants that Python makes in each step, by block.
        values: values of a real batch; None: the batch has none, or a step must not depend on them.
        sums: tasks by which autograd adds gradients that meet, if the first is not a view of another tensor.
        stopped: dropouts with whose masks a region that runs again has what the backward pass needs, and ends.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        seen: Mapping[Hashable, Outputs],
        gpu: VirtualGpu | None = None,
        tf32: frozenset[Kind] = frozenset(),
        axes: Mapping[str, str] = MappingProxyType({}),
        code: ExecutedCode | None = None,
    ) -> None:
        super().__init__(code)
        self._tf32, self._gpu, self._axes = tf32, gpu, axes
        self._seen, self._fake_mode = seen, fake_mode
        self._operations: dict[Hashable, Operation] = {}
        self.blocks: list[Block] = []
        self.tasks: list[Task] = []
        self.layers = Layers()
        self.constants: dict[int, Tensor] = {}
        self.made_anew: dict[int, Tensor] = {}
        self._constant_layers: dict[int, str] = {}
        self.lifetimes = Lifetimes(self.tasks)
        self._blocks = self.lifetimes.blocks
        self._callers_memory = CallersMemory()
        self.sums: set[int] = set()
        self.stopped: set[int] = set()
        self.values: RealValues | None = None

    # ---- layers -------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Part of the step that is running."""
        return self.layers.phase

    @property
    def layer_name(self) -> str:
        """Name of the layer that is running, for error messages."""
        return self.layers.name

    def enter_backward(self, roots: Sequence[Tensor]) -> None:
        """Hook every autograd node behind some tensors so that it sets its layer while it runs.

        Raises:
            UnsupportedModel: they depend on a trained tensor that is not a parameter of the module.
        """
        self.lifetimes.follow_numbers()
        self.layers.phase = Phase.BACKWARD
        nodes = autograd_nodes(roots)
        leaves = (getattr(node, "variable", None) for node in nodes)
        reader = next(filter(None, (self._constant_layers.get(id(leaf)) for leaf in leaves)), None)
        if reader is not None:
            raise UnsupportedModel(
                reader, "it trains a tensor that is not a parameter of the module", "make it a parameter, or detach it"
            )
        self.layers.follow(nodes)

    # ---- blocks -------------------------------------------------------------------------------------

    def external(self, name: str, tensor: Tensor, role: Role, real: Tensor | None = None) -> int:
        """Record a block of the caller's, of a tensor that stands for `real`; tensors of one storage share it."""
        block = self._blocks.get(storage_address(tensor.untyped_storage()))
        if block is not None:
            return block
        index = self._add_block(name, tensor, role, layer=-1)
        if real is not None:
            self.blocks[index] = self._callers_memory.counted(self.blocks[index], tensor, real)
        return index

    def value(self, tensor: Tensor) -> Value:
        """Return a tensor as a value; one that is not a parameter, buffer, argument or result becomes a constant."""
        return Value(
            self._block_of(tensor),
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def constant(self, name: str, tensor: Tensor) -> int:
        """Record a block that the model holds outside its parameters and buffers, and keep its tensor."""
        block = self.external(name, tensor, Role.CONSTANT, None if isinstance(tensor, FakeTensor) else tensor)
        self.constants.setdefault(block, whole_of(tensor))
        return block

    def carried(self, name: str, tensor: Tensor, real: Tensor) -> None:
        """Record what stands for a tensor of the model, with its values unless it has none or is a part of others."""
        block = self.constant(name, tensor)
        if not (real is tensor or real.is_meta or real.storage_offset()):
            self.made_anew[block] = real

    def _block_of(self, tensor: Tensor) -> int:
        block = self._blocks.get(storage_address(tensor.untyped_storage()))
        if block is None:
            block = self.constant(f"constant{len(self.constants)}", tensor)
            self._constant_layers[id(tensor)] = self.layer_name
        return block

    def _add_block(self, name: str, tensor: Tensor, role: Role, layer: int) -> int:
        index = len(self.blocks)
        self.blocks.append(Block(index, name, tensor.untyped_storage().nbytes(), role, layer))
        self.lifetimes.follow(tensor, index)
        return index

    # ---- operators ----------------------------------------------------------------------------------

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        # autograd calls this one more often than all other operators together
        if func is DEVICE_OF:
            return args[0].device if self._gpu is None else self._gpu.device_of(args[0])
        if not are_fake(tuple(types)):
            return self._in_wrapper(func, args, kwargs or {})
        kwargs = kwargs or {}
        self.lifetimes.follow_numbers()
        if self._gpu is None:
            return self._dispatch(func, args, kwargs)
        if self._gpu.copies_to_host(func, kwargs):
            refuse_copy_to_host(self.layer_name)
        kwargs = self._gpu.with_device(kwargs)
        if self._gpu.stays(func, args, kwargs):
            return args[0]
        output = self._dispatch(func, args, kwargs)
        self._gpu.note_made((args, kwargs), output)
        return output

    def _in_wrapper(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let a subclass run an operator on the tensors that it wraps."""
        if self._gpu is None or self._gpu.is_in_wrapper:
            return NotImplemented
        with self._gpu.wrapper(), self:
            return func(*args, **kwargs)

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.layers.is_forward:
            self.layers.note_node()
        else:
            func = aten.in_node(func, self.layers.node)
        if func is _CONVOLUTION_BACKWARD and args[10][0] and any(args[10][1:]):
            _, *weight_gradients = self._run(func, (*args[:10], [False, *args[10][1:]]), kwargs)
            data_gradient, _, _ = self._run(func, (*args[:10], [True, False, False]), kwargs)
            return data_gradient, *weight_gradients
        if (in_parts := parts_of(func, args, is_absent=self._gpu is not None)) is not None:
            with self:
                return in_parts(*args, **kwargs)
        return self._run(func, aten.as_in_plain_pytorch(func, args), kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _LIFT_FRESH and not isinstance(args[0], FakeTensor):
            # Python makes this tensor again in each step, and may write to it
            output = func(*args, **kwargs)
            copy = operation_of(torch.ops.aten.clone.default, args, kwargs, output, [True])
            self._record(copy, args, kwargs, [output])
            self.made_anew[self.value(args[0]).block] = args[0]
            return output
        detaches = func is _DETACH and not self.layers.is_forward
        if detaches or is_wait(func):
            return layout_of(args[0]).fake_tensor(self._fake_mode, view_of=args[0])
        if torch.Tag.inplace_view in func.tags:
            return with_layout_changed(func, args, kwargs, self.layer_name)
        args = self._with_tensor_to_view(func, args)
        operation, output = self._operation(func, args, kwargs)
        if operation is None:
            return output
        if operation.view_of is None:
            self._record(operation, args, kwargs, as_list(output))
            if operation.numbers and self.layers.is_forward:
                self.lifetimes.expect_numbers(as_list(output)[0], operation.numbers)
        else:
            block = self._block_of(args[operation.view_of])
            for view in tree_leaves(output):
                self.lifetimes.follow(view, block)
        return output

    def _with_tensor_to_view(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with a tensor in place of a number that the operator would return a view of.

        Autograd's gradient of a product reads the conjugate of a complex number so; shape functions make a new tensor
        of it.
        """
        if (at := aten.viewed_number(func, args)) is None:
            return args
        dtype = aten.NUMBER_DTYPES[type(args[at])]
        number = self._run(torch.ops.aten.scalar_tensor.default, (args[at],), {"dtype": dtype})
        return *args[:at], number, *args[at + 1 :]

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Operation | None, Any]:
        """Return a call's operation and its output; no operation if the output is known."""
        key = call_key(func, args, kwargs)
        if (operation := self._operations.get(key)) is not None:
            return operation, operation.run_again(self._fake_mode, args)
        try:
            output = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            call = Call(str(func), self._converted(args, ()), self._converted_names(kwargs), ())
            if (known := evaluate(call, self.tasks, self.made_anew)) is not None:
                return None, tree_map_only(Tensor, self._constant, known)
            if self.values is None:
                raise
            written = [aten.argument_at(at, args, kwargs) for at in aten.written_arguments(func, args, kwargs)]
            output, key = self.values.traced(call, written, error), None
        output = self._with_real_outputs(func, args, kwargs, output)
        output = with_strides_of_views(func, args, kwargs, output, self._fake_mode)
        outputs = as_list(output)
        check_dense(func, outputs, self.layer_name)
        operation = operation_of(func, args, kwargs, output, list(map(self.lifetimes.is_new, outputs)))
        if key is not None and operation.outputs is not None:
            self._operations[key] = operation
        return operation, output

    def _constant(self, tensor: Tensor) -> Tensor:
        """Return a tensor with known contents as the trace goes on with it."""
        traced = tensor
        if self._gpu is not None:
            traced = layout_of(tensor)._replace(device=self._gpu.device).fake_tensor(self._fake_mode)
        self.made_anew[self.value(traced).block] = tensor
        return traced

    def without_values(self, tensor: Tensor) -> Tensor:
        """Return a kernel's result as the trace goes on with it."""
        return without_values(tensor, self._fake_mode, None if self._gpu is None else self._gpu.device)

    @property
    def depends_on_values(self) -> bool:
        """Whether sizes or numbers were computed from the values of this batch."""
        return self.values is not None and self.values.were_read

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether a tensor has the same values in every step."""
        return is_known(self.value(tensor).block, self.tasks, self.made_anew)

    def contents(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor that has the same in every step, else None."""
        alias = Call("aten.alias.default", (self.value(tensor),), (), ())
        return evaluate(alias, self.tasks, self.made_anew)

    def _with_real_outputs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Correct a shape function's outputs by facts about the operator or by what was seen on the device."""
        if self._seen and aten.viewed_argument(func, args) is None:
            arguments = self._converted(args, aten.shape_only_arguments(func, args))
            seen = self._seen.get(signature(str(func), arguments, self._converted_names(kwargs)))
            if seen is not None:
                return as_seen(output, seen)
        return with_real_outputs(func, args, output, has_device=self._gpu is None)

    def _record(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Any]) -> None:
        created = list(map(self.lifetimes.is_new, outputs))
        if not (any(created) or operation.written):
            return
        self._check(operation, args, kwargs)
        layer, is_forward = self.layers.of_function(operation.name), self.layers.is_forward
        layer_name = self.layers.names[layer]
        recorded_args = self._converted(args, operation.shape_only)
        recorded_kwargs = self._converted_names(kwargs)
        inputs = values_in((recorded_args, recorded_kwargs))
        written = [self.value(aten.argument_at(at, args, kwargs)).block for at in operation.written]
        writes = self._callers_memory.with_overlapping(written)
        is_sum = not is_forward and not self.layers.in_node and operation.operator == "aten.add.Tensor"
        if is_sum and view_base(args[0]) is None:
            self.sums.add(len(self.tasks))
        creates, values = self._results(outputs, created, f"{layer_name}:{operation.name}", layer)
        collective = collective_of(operation.operator, recorded_args, values, self._axes, layer_name)
        task = Task(
            index=len(self.tasks),
            name=f"{layer_name}:{operation.name}{self.layers.suffix}",
            kind=operation.kind,
            phase=self.phase,
            layer=layer,
            reads=tuple(dict.fromkeys((*(value.block for value in inputs), *writes))),
            writes=tuple(dict.fromkeys((*writes, *creates))),
            creates=tuple(creates),
            operations=0 if collective else operation.operations,
            workspace_bytes=operation.workspace_bytes,
            moved_bytes=0 if collective else operation.moved_bytes((recorded_args, tuple(values))),
            collective=collective,
            gradient_of=None if is_forward else operation.gradient_of,
            random=operation.random,
            precision=operation.precision((*inputs, *filter(None, values)), self._tf32),
            convolution=operation.convolution,
            call=Call(operation.operator, recorded_args, recorded_kwargs, tuple(values)),
        )
        self.tasks.append(task)

    def _results(
        self, outputs: list[Any], created: list[bool], name: str, layer: int
    ) -> tuple[list[int], list[Value | None]]:
        """Record the blocks that a call creates; return them and its outputs, None for one in an older block."""
        role = Role.ACTIVATION if self.layers.is_forward else Role.GRADIENT
        creates, values = [], []
        for position, (out, is_new) in enumerate(zip(outputs, created, strict=True)):
            if is_new and self.lifetimes.is_new(out):
                suffix = f".{position}" if len(outputs) > 1 else ""
                creates.append(self._add_block(f"{name}{suffix}{self.layers.suffix}", out, role, layer))
            values.append(self.value(out) if is_new else None)
        return creates, values

    def _check(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_call(operation, args, kwargs, self.layer_name)
        for tensor in (aten.argument_at(at, args, kwargs) for at in operation.written):
            if self.blocks[self._block_of(tensor)].role is Role.BUFFER:
                check_size_is_kept(tensor, self.layer_name)

    def _converted(self, args: tuple[Any, ...], shape_only: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple([
            ShapeOf(self.value(arg)) if i in shape_only and isinstance(arg, Tensor) else self._convert(arg)
            for i, arg in enumerate(args)
        ])  # fmt: skip

    def _converted_names(self, kwargs: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        return tuple((name, self._convert(value)) for name, value in kwargs.items())

    def _convert(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.value(argument)
        if isinstance(argument, list | tuple):
            return tuple(self._convert(item) for item in argument)
        return argument
