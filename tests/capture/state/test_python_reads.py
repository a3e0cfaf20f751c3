"""Objects are followed by the names of the code that ran; kinds of state: tests/steps/real/test_kinds_of_state.py."""

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from membench.capture.state.executed_code import ExecutedCode
from membench.capture.state.python_reads import PythonReads


class Layer(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)

    def forward(self, held: Any) -> Any:
        return self.read, held


def reads_of(layer: Layer, *, loss: Any = None) -> PythonReads:
    with ExecutedCode() as code:
        layer(None)
    return PythonReads([("", layer)], loss, [], code)


def changed(reads: PythonReads) -> list[tuple[str, Any]]:
    return [(each.owner, each.name) for each in reads.places.changes()]


def test_what_is_named_is_compared_and_nothing_else() -> None:
    layer = Layer(read=1, unread=1)
    reads = reads_of(layer)
    layer.unread = 2
    assert reads.places.are_unchanged()
    layer.read = 2
    assert changed(reads) == [("the module", "read")]


def test_objects_that_refer_to_each_other_are_followed_once() -> None:
    one, other = Layer(), Layer()
    one.read, other.read = [other], {"back": one}
    reads = reads_of(one)
    other.read["back"] = other
    assert changed(reads) == [("layer 'read.0.read'", "back")]


def test_a_layer_in_a_list_is_followed_as_a_layer() -> None:
    inner = Layer(read=1, unread=1)
    reads = reads_of(Layer(read=[inner]))
    inner.unread = 2
    assert not changed(reads)
    inner.read = 2
    assert changed(reads) == [("layer 'read.0'", "read")]


def test_what_cannot_be_compared_is_named() -> None:
    reads = reads_of(Layer(read=itertools.count()))
    assert reads.uncompared == ["layer 'read', a count"] and reads.may_draw
    reads = reads_of(Layer(read=[0] * 5000))
    assert reads.uncompared == ["layer 'read', of 5000 items or bytes"]
    reads = reads_of(Layer(read=np.zeros(5000)))
    assert reads.uncompared == ["layer 'read', of 40000 items or bytes"]


def test_tensors_count_by_identity_alone() -> None:
    held: Tensor = torch.zeros(3)
    reads = reads_of(Layer(read=held))
    held.fill_(1)
    assert reads.places.are_unchanged() and not reads.may_draw
