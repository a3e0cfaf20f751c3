"""Settings of torch changed between capture and step: the step computes what plain PyTorch does, or refuses."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import membench
from membench.core.errors import MembenchError, ModuleChanged

STRATEGIES = ("eager", "vdnn_all", "layrub_hybrid")


class Making(nn.Module):
    """A layer whose result is multiplied by numbers of the default dtype, which the module makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        numbers = torch.linspace(0.1, 0.7, 3).exp().sum().sqrt()
        return self.linear(rows) * numbers.to(rows.dtype)


@contextmanager
def set_by(function: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    function(value)
    try:
        yield
    finally:
        function(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "deterministic": lambda: set_by(torch.use_deterministic_algorithms, True, False),
    "matmul precision": lambda: set_by(torch.set_float32_matmul_precision, "medium", "highest"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "one thread": lambda: torch.autograd.set_multithreading_enabled(False),
    "threads": lambda: set_by(torch.set_num_threads, 1, torch.get_num_threads()),
    "default dtype": lambda: set_by(torch.set_default_dtype, torch.float64, torch.float32),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
REFUSED = {
    "default dtype": "default dtype was torch.float32 when the step was captured, and is torch.float64 now",
    "autocast": "with autocast to torch.bfloat16",
}


def plain(module: nn.Module, rows: Tensor, labels: Tensor) -> list[Tensor]:
    module.zero_grad()
    loss = F.cross_entropy(module(rows), labels)
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in module.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_after_the_capture_gives_the_result_of_plain_pytorch_or_is_refused(name: str, strategy: str) -> None:
    module, rows, labels = Making(), torch.randn(4, 6), torch.randint(3, (4,))
    step = membench.compile(module, F.cross_entropy, (rows, labels), strategy=strategy)
    wrapped = membench.wrap(module, strategy=strategy)
    before = plain(wrapped, rows, labels)
    with SETTINGS[name]():
        expected = plain(module, rows, labels)
        assert all(map(torch.equal, plain(wrapped, rows, labels), expected))
        module.zero_grad()
        if name in REFUSED:
            with pytest.raises(MembenchError, match=REFUSED[name]):
                step(rows, labels)
        else:
            loss = step(rows, labels)
            made = [loss, *(weight.grad for weight in module.parameters())]
            assert all(map(torch.equal, made, expected))  # type: ignore[arg-type]
    assert all(map(torch.equal, plain(wrapped, rows, labels), before))
    step.close()


def test_a_step_of_any_shape_is_captured_again_under_another_default_dtype() -> None:
    module, rows, labels = Making(), torch.randn(4, 6), torch.randint(3, (4,))
    step = membench.compile(module, F.cross_entropy, (rows, labels), shapes="any")
    with SETTINGS["default dtype"]():
        expected, *_ = plain(module, rows, labels)
        assert step(rows, labels).equal(expected)
    fixed = membench.compile(module, F.cross_entropy, (rows, labels))
    with SETTINGS["default dtype"](), pytest.raises(ModuleChanged, match="compile the step again"):
        fixed(rows, labels)


def test_other_kernels_of_attention_are_a_capture_of_their_own_and_refused_by_a_compiled_step() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(16, 48)

        def forward(self, tokens: Tensor) -> Tensor:
            heads = self.project(tokens).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(*heads)

    module, tokens = Attending(), torch.randn(2, 6, 16)
    wrapped = membench.wrap(module)
    step = membench.compile(module, lambda out: out.square().sum(), (tokens, ()))
    step(tokens)
    for context in (nullcontext(), sdpa_kernel(SDPBackend.MATH), nullcontext()):
        with context:
            assert wrapped(tokens).equal(module(tokens))
    assert len(wrapped.wrapped_calls.steps) == 2
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(MembenchError, match="allows other kernels of attention now"):
        step(tokens)
    step(tokens)
