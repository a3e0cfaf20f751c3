"""The tensors of a trace's caller: blocks, values, and the objects that hold them before and after the step."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from membench.capture.module.fakes import Fakes
from membench.capture.operators.unquantized import is_unquantized
from membench.capture.recorder import Recorder
from membench.capture.values.real_values import RealValues, has_values
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Value
from membench.core.graph.task_graph import Role
from membench.core.libraries.torch_internals import tree_leaves, tree_map_only
from membench.core.step.arguments import Arguments, tensors_in
from membench.core.step.opened import Opened, objects_in, opened
from membench.core.step.stored import stored_buffers, stored_weights
from membench.core.step.workload import Workload


def state_blocks(
    recorder: Recorder, tensors: Mapping[str, Tensor], role: Role, real: Mapping[str, Tensor]
) -> dict[str, int]:
    """Record weights or buffers; return their blocks by name.

    Args:
        real: what the tensors stand for.
    """
    return {name: recorder.external(name, each, role, real.get(name)) for name, each in tensors.items()}


def argument_blocks(
    recorder: Recorder, name: str, arguments: Arguments, role: Role, real: Arguments
) -> list[int | None]:
    """Record the tensors of arguments; return the block of each leaf, None if it is not a tensor.

    Args:
        real: what the arguments stand for.
    """
    leaves = zip(tree_leaves(opened(arguments)), tree_leaves(opened(real)), strict=True)
    return [
        recorder.external(f"{name}{position}", leaf, role, own) if isinstance(leaf, Tensor) else None
        for position, (leaf, own) in enumerate(leaves)
    ]


def real_values(workload: Workload, recorder: Recorder, fakes: Fakes) -> RealValues | None:
    """Return the values of a workload's tensors, which have been recorded; None if one of them has no data."""
    if not has_values(workload.module, (workload.inputs, workload.targets)) or any(
        map(is_unquantized, workload.module.parameters())
    ):
        return None
    values = RealValues(recorder)
    real = [*stored_weights(workload.module).values(), *stored_buffers(workload.module).values()]
    traced = [*fakes.stored_weights.values(), *fakes.stored_buffers.values()]
    for given, without_values in ((workload.inputs, fakes.inputs), (workload.targets, fakes.targets)):
        real += tensors_in(given)
        traced += tensors_in(opened(without_values))
    for own, fake in zip(real, traced, strict=True):
        values.give(recorder.value(fake), own)
    return values


def by_every_name(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
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


def check_output(output: Any) -> None:
    """Refuse an output with tensors that a step could not return.

    Raises:
        UnsupportedModel: it holds an object that cannot be opened.
    """
    for leaf in tree_leaves(output):
        if not isinstance(leaf, Tensor) and type(leaf).__module__ not in ("builtins", "torch"):
            raise UnsupportedModel(
                "output",
                f"torch's pytree cannot open a {type(leaf).__name__}",
                "return tensors, tuples, lists or dicts of tensors, or an object with them in its attributes",
            )


class InputObjects:
    """The inputs of a step, whose objects the module may change: a cache takes up keys and values.

    Args:
        inputs: without data, recorded already.
    """

    def __init__(self, recorder: Recorder, inputs: Arguments) -> None:
        self._recorder, self._inputs = recorder, inputs
        self._before = self._values()

    def changes(self, output: Any, *, trains: bool) -> tuple[tuple[Opened, ...], frozenset[int]]:
        """Return the objects as the module has left them, if it has changed one, and the blocks that nothing holds now.

        Args:
            output: the module's output, with `Value` in place of tensors.

        Raises:
            UnsupportedModel: a step that trains changes one.
        """
        after = self._values()
        if after == self._before:
            return (), frozenset()
        if trains:
            raise UnsupportedModel(
                "the model",
                "it changes an object among its inputs, such as a cache of keys and values, in a step that trains",
                "pass tensors, or use_cache=False, or loss=None for a step of inference",
            )
        return objects_in(after), frozenset(_blocks_in(self._before) - _blocks_in((after, output)))

    def _values(self) -> Any:
        return tree_map_only(Tensor, self._recorder.value, opened(self._inputs))


def _blocks_in(tree: Any) -> set[int]:
    return {value.block for value in tree_leaves(tree) if isinstance(value, Value)}
