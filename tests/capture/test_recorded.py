"""Two recordings of one step are the same; those of two steps differ, and say where."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.capture.recorded import Recorded
from membench.core.step.workload import Workload


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor, self.rows, self.listed, self.extra = nn.Linear(6, 3), 1.0, 2, [1.0], False

    def forward(self, inputs: Tensor) -> Any:
        out = self.layer(inputs)[: self.rows] * self.factor + torch.tensor(self.listed)
        return (out.relu(), self.factor) if self.extra else (out, self.factor)


def recorded(module: nn.Module) -> Recorded:
    return Recorded.of(Workload("step", module, None, (torch.randn(4, 6),)), None, {})


def test_the_same_step_is_recorded_as_the_same() -> None:
    made = recorded(Step())
    assert made.difference(made.again()) == ""
    assert made.time_s > 0 and "factor" in made.code.names


def test_the_same_step_is_recorded_within_autocast_or_not() -> None:
    made = recorded(Step())
    with torch.autocast("cpu", torch.bfloat16):
        assert made.difference(made.again()) == ""
        cast = recorded(Step())
    assert cast.difference(cast.again()) == ""
    assert "is another call" in made.difference(cast)


@pytest.mark.parametrize(
    ("name", "value", "difference"),
    [
        ("factor", 2.0, "mul' is another call than at the capture"),
        ("factor", -1.0, "is another call"),
        ("rows", 3, "is another call"),
        ("listed", [-0.0], "a constant of shape"),
        ("extra", True, "tasks, and were"),
    ],
)
def test_another_step_differs(name: str, value: Any, difference: str) -> None:
    module = Step()
    made = recorded(module)
    setattr(module, name, value)
    assert difference in made.difference(made.again())


def test_a_step_that_only_returns_something_else_differs() -> None:
    class Returned(nn.Module):
        returned = 1

        def forward(self, inputs: Tensor) -> Any:
            return inputs + 1, self.returned

    module = Returned()
    made = recorded(module)
    module.returned = 2
    assert made.difference(made.again()) == "the step returns something else than at the capture"
