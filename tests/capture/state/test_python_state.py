"""Python side effects of a module are refused where each step would need them, and undone after a capture."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.core.errors import UnsupportedModel
from membench.core.step.workload import Workload


class Does(nn.Module):
    """A linear layer with a side effect in Python, and the attributes for it."""

    def __init__(self, what: Callable[["Does", Tensor], object]) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.what = what
        self.count = 0
        self.size: tuple[int, ...] | None = None
        self.maps: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.last = torch.zeros(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs)
        self.what(self, outputs)
        return outputs * (1 + self.count)


def _capture(module: nn.Module) -> None:
    data = (torch.randn(4, 3),), (torch.arange(4) % 3,)
    capture(Workload("net", module, nn.functional.cross_entropy, *data))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda m, _: setattr(m, "count", m.count + 1), "'count' is not supported: it changes whenever"),
        (lambda m, _: setattr(m, "last", m.inner.weight * 2), "'last' is not supported: it is a tensor that"),
        (lambda m, maps: m.maps.append(maps.detach()), "'maps' is not supported: it is a tensor that"),
        (lambda m, maps: m.cache.update(last=maps), "'cache' is not supported: it is a tensor that"),
        (lambda *_: random.random(), "it draws random numbers from Python or NumPy"),
        (lambda *_: np.random.rand(), "it draws random numbers from Python or NumPy"),  # noqa: NPY002
    ],
)
def test_what_each_step_would_have_to_do_is_refused(what: Callable[[Does, Tensor], object], message: str) -> None:
    module = Does(what)
    before = {name: value for name, value in vars(module).items() if name in ("count", "last")}
    with pytest.raises(UnsupportedModel, match=message):
        _capture(module)
    assert all(getattr(module, name) is value for name, value in before.items())
    assert module.maps == [] and module.cache == {}


def _notes_the_size(module: Does, maps: Tensor) -> None:
    if module.size is None:
        module.count = 1
    module.size = tuple(maps.shape)


def test_what_a_first_call_sets_up_is_captured_as_the_second_finds_it() -> None:
    module = Does(_notes_the_size)
    _capture(module)
    assert (module.count, module.size) == (0, None)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_hook_may_make_a_weight_anew_for_each_call() -> None:
    layer = nn.utils.weight_norm(nn.Linear(3, 3))
    before = layer.weight
    _capture(nn.Sequential(layer, layer))
    assert layer.weight is before


def test_the_list_of_weights_of_a_recurrent_network_stays_its_own() -> None:
    network = nn.GRU(3, 3)
    data = (torch.randn(4, 1, 3),), ()
    capture(Workload("net", network, lambda outputs: outputs[0].sum(), *data))
    assert all(one is other for one, other in zip(network._flat_weights, network.parameters(), strict=True))
