"""The largest batch of a module whose graphs are not on lines over the batch: each is captured."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core import configuration
from membench.core.units import MIB

pytestmark = pytest.mark.usefixtures("kept_planners")
CARD = replace(configuration.load("device", "rtx3090"), memory_bytes=200 * MIB, context_bytes=MIB)


class _Network(nn.Module):
    """Holds twice as much from 20 samples on."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.convolution(images)
        return (features.tanh() if len(images) >= 20 else features).sigmoid().mean((2, 3))


@pytest.mark.slow
def test_plain_pytorchs_is_exact_and_a_methods_fits() -> None:
    def step(size: int) -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
        with torch.device("meta"):
            batch = torch.randn(size, 3, 128, 128), torch.randint(16, (size,))
            return _Network(), nn.CrossEntropyLoss(), batch

    def fits(size: int, strategy: str = "pytorch") -> bool:
        return membench.predict(*step(size), device=CARD, strategy=strategy).fits

    advice = membench.advise(*step(8), device=CARD, methods=["vdnn_all"], processes=1)
    assert advice.largest_batch is not None and advice.largest_batch >= 20
    assert fits(advice.largest_batch) and not fits(advice.largest_batch + 1)
    (plan,) = advice.plans
    assert plan.largest_batch is not None and fits(plan.largest_batch, "vdnn_all")
