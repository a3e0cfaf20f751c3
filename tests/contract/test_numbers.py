"""Python's numbers in operators: each makes temporaries that a step holds to the byte, with PyTorch's bits."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.capture.capture import Captures
from membench.core.errors import UnsupportedModel
from membench.core.step.workload import Workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from tests.helpers.networks.contract import COST

NUMBERS: tuple[Any, ...] = (True, 2, 0.5, 1 + 2j)
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_OF_TORCH = (
    *("add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "float_power", "eq", "lt", "ge"),
    *("bitwise_and", "bitwise_or", "bitwise_left_shift", "xlogy", "clamp_min", "clamp_max", "copysign", "nan_to_num"),
)
_IN_PLACE = ("add_", "sub_", "mul_", "div_", "pow_", "remainder_", "clamp_min_", "fill_", "eq_", "bitwise_and_")


def _of_torch(name: str) -> Callable[[Tensor, Any], Tensor]:
    return getattr(torch, name)


def _in_place(name: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, number: getattr(x * 1, name)(number)


def _written(x: Tensor, at: Any, number: Any) -> Tensor:
    written = x * 1
    written[at] = number
    return written


FUNCTIONS: dict[str, Callable[[Tensor, Any], Any]] = {
    **{name: _of_torch(name) for name in _OF_TORCH},
    **{name: _in_place(name) for name in _IN_PLACE},
    "from the number": lambda x, n: n - x,
    "divided into": lambda x, n: n / x,
    "to the power": lambda x, n: n**x,
    "truncated": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "where, second": lambda x, n: torch.where(x.abs() > 0.5, x, n),
    "where, first": lambda x, n: torch.where(x.abs() > 0.5, n, x),
    "where, both": lambda x, n: torch.where(x.abs() > 0.5, n, 1),
    "masked fill": lambda x, n: x.masked_fill(x.abs() > 0.5, n),
    "add with alpha": lambda x, n: torch.add(x, x, alpha=n),
    "sub of a number with alpha": lambda x, n: torch.sub(x, 2, alpha=n),
    "lerp": lambda x, n: torch.lerp(x, x * x, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "addmm": lambda x, n: torch.addmm(x[:, :3], x, x.T, alpha=n, beta=n),
    "addr": lambda x, n: torch.addr(x[:, :3], x[:, 0], x[:, 1], alpha=n),
    "full": lambda x, n: x * torch.full_like(x, n) * torch.full((4,), n),
    "clamp": lambda x, n: x.clamp(n, n),
    "threshold": lambda x, n: functional.threshold(x, n, n),
    "elu": functional.elu,
    "leaky": functional.leaky_relu,
    "softplus": functional.softplus,
    "index fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda x, n: x.scatter(0, torch.zeros(1, 4, dtype=torch.long), n),
    "row": lambda x, n: _written(x, 0, n),
    "mask": lambda x, n: _written(x, x.abs() > 0.5, n),
    "tensor of the number": lambda x, n: x * torch.tensor(n) + torch.scalar_tensor(n),
    "maximum": lambda x, n: torch.maximum(x, torch.tensor(n)),
    "lists": lambda x, n: torch._foreach_add(torch._foreach_mul([x, x], [n, n]), n)[1],
    "powers in a list": lambda x, n: torch._foreach_pow([x], n)[0],
    "conjugate": lambda x, n: (x * n).conj() * n,
    "negative view": lambda x, n: (x * n).to(torch.complex64).conj().imag * n,
    "spectrum": lambda x, n: torch.fft.rfft(x) * (1 + n * x[:, :3]),
    "numbers of a sum": lambda x, n: n / (x.sum() ** n * n + n),
    "norm": torch.linalg.vector_norm,
    "polar": lambda x, n: torch.polar(x, x) * n,
    "dropout": lambda x, n: functional.dropout(x, 0.2) * n,
    "padding": lambda x, n: functional.pad(x, (1, 1), value=n),
}


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor, Any], Any], dtype: torch.dtype, number: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 4) + 0.1)
        self.function, self.dtype, self.number = function, dtype, number

    def forward(self, inputs: Tensor) -> Tensor:
        made = self.function((self.weight * inputs).to(self.dtype), self.number).resolve_conj()
        real = torch.view_as_real(made) if made.is_complex() else made
        total: Tensor = real.float().sum() + self.weight.sum()
        return total


def _cases() -> Iterator[tuple[torch.dtype, Any]]:
    yield from itertools.product(DTYPES, NUMBERS)


def _difference(name: str, dtype: torch.dtype, number: Any, strategy: str) -> str:
    """Return what differs from plain PyTorch or the prediction, empty if nothing does or either refuses."""
    torch.manual_seed(0)
    module, inputs = _Function(FUNCTIONS[name], dtype, number), torch.rand(4)
    try:
        torch.manual_seed(1)
        module(inputs).backward()
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return ""
    expected, module.weight.grad = module.weight.grad, None
    work = Workload(name, module, lambda output: output, (inputs,))
    try:
        step = build_step(Captures(work), COST, StepRequest(strategies()[strategy]()))
    except UnsupportedModel:
        return ""
    torch.manual_seed(1)
    step((inputs,), ())
    found, module.weight.grad = module.weight.grad, None
    is_same = torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    measured, predicted = step._measure_peak(), step.predicted_peak_bytes
    step.close()
    if is_same and measured == predicted:
        return ""
    numbers = f"measured {measured}, predicted {predicted}, same bits: {is_same}"
    return f"{name} of {dtype} and {number!r}, {strategy}: {numbers}"


@pytest.mark.parametrize("strategy", ["eager", "best_fit"])
@pytest.mark.parametrize("name", ["mul", "div", "divided into", "conjugate", "spectrum", "where, first"])
def test_complex_numbers_take_what_is_predicted(name: str, strategy: str) -> None:
    differences = [_difference(name, dtype, 1 + 2j, strategy) for dtype in (torch.float32, torch.complex128)]
    assert not any(differences)


def test_a_number_of_any_type_takes_what_is_predicted() -> None:
    rng = random.Random(5)
    cases = [(name, *rng.choice(list(_cases()))) for name in FUNCTIONS]
    differences = [_difference(*case, rng.choice(["eager", "network_wide"])) for case in cases]
    assert not any(differences), "\n".join(filter(None, differences))


@pytest.mark.filterwarnings("ignore:Casting complex values to real discards")  # torch says so once in a process
@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("strategy", ["eager", "best_fit", "pytorch", "network_wide"])
def test_every_function_of_every_number_takes_what_is_predicted(strategy: str) -> None:
    differences = [_difference(name, *case, strategy) for name in FUNCTIONS for case in _cases()]
    assert not any(differences), "\n".join(filter(None, differences))
