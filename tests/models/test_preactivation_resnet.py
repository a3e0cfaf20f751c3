import pytest
import torch
from torch import nn

from membench.models.preactivation_resnet import preactivation_resnet


@pytest.mark.parametrize(("depth", "millions"), [(164, 1.7), (1001, 10.2)])
def test_parameters_are_those_of_the_paper(depth: int, millions: float) -> None:
    """Table 4 of "Identity Mappings in Deep Residual Networks"."""
    with torch.device("meta"):
        model = preactivation_resnet(depth)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.015)


def test_depth_counts_all_weight_layers_but_projections() -> None:
    with torch.device("meta"):
        model = preactivation_resnet(29)
    counted = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "projection" not in name
    ]
    assert len(counted) == 29
    assert model(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_a_depth_that_does_not_fit_the_blocks() -> None:
    with pytest.raises(ValueError, match="9n\\+2 layers"):
        preactivation_resnet(100)
