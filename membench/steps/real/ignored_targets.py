"""Targets that a loss ignores: micro-batches do not add up to a mean over the other samples."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.call import Value
from membench.core.graph.task_graph import TaskGraph

_NEGATIVE_LOG_LIKELIHOODS = ("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
"""Losses over classes; called with scores, targets, weights of classes, reduction and the ignored target."""

_MEAN = 1


class IgnoredTargets:
    """The arguments of a step in micro-batches from which a loss takes classes, and the class that it ignores.

    Args:
        graph: a micro-batch's graph.
        arguments: the block of each leaf of the step's arguments; None if it is not a tensor.

    Raises:
        UnsupportedModel: the loss is a mean that is weighted by the targets' classes.
    """

    def __init__(self, graph: TaskGraph, arguments: Sequence[int | None]) -> None:
        made_of: dict[int, frozenset[int]] = {}
        self._ignored: set[tuple[int, int]] = set()  # position among the arguments, class
        for task in graph.tasks:
            sources = frozenset[int]().union(*(made_of.get(b, frozenset({b})) for b in task.reads))
            made_of |= dict.fromkeys(task.creates, sources)
            call = task.call
            if call is None or call.operator not in _NEGATIVE_LOG_LIKELIHOODS or call.args[3] != _MEAN:
                continue
            _, targets, weights, _, ignored = call.args
            if weights is not None:
                raise UnsupportedModel(
                    graph.layers[task.layer],
                    "micro-batches add up to a mean over the samples, but its mean is weighted by their classes",
                    "pass a tensor of one weight per sample among the targets, or run the whole batch",
                )
            assert isinstance(targets, Value)
            of_targets = made_of.get(targets.block, frozenset({targets.block}))
            positions = (i for i, block in enumerate(arguments) if block in of_targets)
            self._ignored.update((position, ignored) for position in positions)

    def check(self, leaves: Sequence[Any]) -> None:
        """Refuse arguments of a whole batch in which targets are ignored.

        Raises:
            MembenchError: the gradients would differ from the whole batch's.
        """
        for position, ignored in self._ignored:
            given = leaves[position]
            if isinstance(given, Tensor) and (count := int((given == ignored).sum())):
                raise MembenchError(
                    f"{count} of {given.numel()} targets are {ignored}, which the loss ignores: the mean over the "
                    "others is not a mean over the samples, and micro-batches would not add up to it; run the whole "
                    "batch, or use membench.wrap on smaller batches, with the sum of the losses over the number of "
                    "targets that count"
                )
