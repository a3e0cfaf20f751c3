"""The measured cost of an update: on a copy, of any optimizer of torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.core.errors import MembenchError
from membench.profiling.update_times import measure_update

CPU = torch.device("cpu")


def weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {"large": nn.Parameter(torch.randn(100, 100)), "small": nn.Parameter(torch.randn(10))}


@pytest.mark.parametrize("has_run", [False, True])
def test_neither_the_optimizer_nor_the_weights_change(has_run: bool) -> None:
    held = weights()
    optimizer = torch.optim.AdamW(held.values())
    if has_run:
        for weight in held.values():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    before = {name: weight.detach().clone() for name, weight in held.items()}
    states = {w: {key: tensor.clone() for key, tensor in s.items()} for w, s in optimizer.state.items()}
    random = torch.get_rng_state()
    cost = measure_update(optimizer, held, CPU)
    assert cost.time_s > 0
    assert list(cost.states) == list(held)
    assert all(set(sizes) == {"step", "exp_avg", "exp_avg_sq"} for sizes in cost.states.values())
    assert all(torch.equal(weight, before[name]) for name, weight in held.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert optimizer.state.keys() == states.keys()
    for weight, state in optimizer.state.items():
        assert all(torch.equal(tensor, states[weight][key]) for key, tensor in state.items())


@pytest.mark.parametrize(
    ("make", "bytes_of_large"),
    [
        (torch.optim.SGD, 0),
        (lambda held: torch.optim.SGD(held, momentum=0.9), 40_000),
        (lambda held: torch.optim.Adam(held, amsgrad=True), 3 * 40_000 + 4),
        (torch.optim.Adafactor, 2 * 400 + 4),
        (lambda held: torch.optim.RMSprop(held, centered=True), 2 * 40_000 + 4),
    ],
)
def test_states_are_those_of_the_weight(make: Callable[[Any], torch.optim.Optimizer], bytes_of_large: int) -> None:
    held = weights()
    cost = measure_update(make(held.values()), held, CPU)
    assert sum(cost.states["large"].values()) == bytes_of_large


def test_a_step_with_arguments_is_refused() -> None:
    held = weights()
    with pytest.raises(MembenchError, match=r"the update of LBFGS .*closure.* update the weights after the step"):
        measure_update(torch.optim.LBFGS(held.values()), held, CPU)


class Hoarder(torch.optim.SGD):
    """Keeps every gradient."""

    def step(self, closure: Any = None) -> None:
        kept: list[Tensor] = self.defaults.setdefault("kept", [])
        kept += [w.grad.clone() for group in self.param_groups for w in group["params"] if w.grad is not None]


def test_an_optimizer_that_holds_more_each_time_is_refused() -> None:
    held = weights()
    with pytest.raises(MembenchError, match=r"Hoarder holds 40,040 bytes more after each update"):
        measure_update(Hoarder(held.values()), held, CPU)
