"""Objects with attributes are containers within membench, and nowhere else."""

import pickle
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.libraries.torch_internals import key_path, tree_leaves, tree_leaves_with_path
from membench.core.step.opened import Opened, change, closed, let_go, objects_in, opened


class Layer:
    """One layer's part of a cache."""

    def __init__(self, keys: Tensor | None) -> None:
        self.keys = keys
        self.length = 3


class Cache:
    """Holds objects in a list."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = list(layers)


@dataclass
class Pair:
    """A dataclass that was not registered."""

    left: Tensor
    right: Tensor


class Color(Enum):
    """Its members are compared by identity."""

    RED = 1


class Slotted:
    """Has attributes outside of its dict."""

    __slots__ = ("__dict__", "hidden")


class Words(dict[str, Any]):
    """Has items in addition to attributes."""


def test_the_tensors_of_an_object_are_leaves_and_a_new_object_holds_others() -> None:
    keys = torch.arange(3)
    cache = Cache(Layer(keys), Layer(None))
    tree = opened({"ids": torch.zeros(1), "cache": cache})
    assert [type(each) for each in tree_leaves(tree)] == [Tensor, Tensor, int, type(None), int]
    paths = [key_path(path) for path, _ in tree_leaves_with_path(tree)]
    assert paths[:3] == ["['ids']", "['cache'].layers[0].keys", "['cache'].layers[0].length"]
    made = closed(tree)["cache"]
    assert type(made) is Cache and made is not cache and made.layers[0] is not cache.layers[0]
    assert made.layers[0].keys is keys and made.layers[1].keys is None and made.layers[0].length == 3
    assert tree_leaves(cache) == [cache], "torch's own pytree does not open it"


def test_dataclasses_open_and_what_is_not_its_attributes_alone_stays() -> None:
    pair = Pair(torch.zeros(1), torch.ones(1))
    assert opened(pair) == Opened(Pair, ("left", "right"), (pair.left, pair.right))
    itself = Cache()
    itself.layers.append(itself)  # type: ignore[arg-type]
    stay = [Color.RED, nn.Linear(1, 1), torch.Generator(), Slotted(), Words(a=1), len, Cache, torch.float32]
    assert opened(stay) == stay
    assert objects_in(opened(itself))[0].values == ([itself],)


def test_a_namespace_opens_and_an_object_with_more_than_attributes_stays() -> None:
    """A class that is written in C may not let `object` make its objects."""

    class Recent(deque[Tensor]):
        pass

    class Wanting:
        def __new__(cls, width: int) -> "Wanting":
            return object.__new__(cls)

        def __init__(self, width: int) -> None:
            self.width = width

    for made in (SimpleNamespace(keys=torch.ones(2), length=3), Wanting(4)):
        again = closed(opened(made))
        assert type(again) is type(made) and again is not made and vars(again) == vars(made)
    for kept in (Recent([torch.ones(2)]), ValueError(torch.ones(2)), threading.local()):
        assert opened([kept])[0] is kept


def test_objects_let_go_of_their_tensors_and_get_others() -> None:
    cache, pair = Cache(Layer(torch.zeros(1))), Pair(torch.zeros(1), torch.ones(1))
    arguments = {"cache": cache, "pair": [pair], "ids": torch.zeros(2)}
    after = opened({"cache": Cache(Layer(torch.ones(2)), Layer(None)), "pair": [pair], "ids": 3})
    let_go(arguments)
    assert vars(cache) == vars(pair) == {} and arguments["ids"].equal(torch.zeros(2))  # type: ignore[attr-defined]
    change(arguments, objects_in(after))
    assert len(cache.layers) == 2 and cache.layers[0].keys is not None and cache.layers[0].keys.equal(torch.ones(2))
    assert pair.right.equal(torch.ones(1))


def test_an_opened_object_can_be_pickled() -> None:
    tree = opened(Layer(None))
    assert pickle.loads(pickle.dumps(tree)) == tree
