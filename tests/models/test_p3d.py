"""P3D ResNet-199: what the definition that its authors published consists of, and what its blocks compute."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.models.p3d import P3DBlock, p3d_resnet


@pytest.fixture
def network(configured_model: Callable[[str], nn.Module]) -> nn.Module:
    return configured_model("p3d199")


def test_it_has_199_weight_layers_and_four_projections(network: nn.Module) -> None:
    """In the published definition: 202 convolutions, as many batch norms, and one inner product."""
    kinds = Counter(type(module) for module in network.modules())
    assert kinds[nn.Conv3d] + kinds[nn.Conv2d] == kinds[nn.BatchNorm3d] + kinds[nn.BatchNorm2d] == 202
    assert kinds[nn.Linear] == 1
    assert 202 + 1 - 4 == 199


def test_it_has_the_weights_of_resnet_152_and_those_of_time(
    network: nn.Module, configured_model: Callable[[str], nn.Module]
) -> None:
    """Each of the 47 P3D blocks adds a 3x1x1 convolution with batch norm; there are 487 classes, not 1000."""
    in_time = sum(blocks * (3 * channels**2 + 2 * channels) for blocks, channels in ((3, 64), (8, 128), (36, 256)))
    expected = _count(configured_model("resnet152")) + in_time + (487 - 1000) * (2048 + 1)
    assert _count(network) == expected == 66_670_503


def test_blobs_are_those_of_the_published_definition(network: nn.Module) -> None:
    """Height and width 160 -> 80 -> 40 -> 20 -> 10 -> 5; frames 16 -> 8 -> 4 -> 2 -> 1."""
    sizes = {}
    with torch.no_grad():
        clip = torch.empty(1, 3, 16, 160, 160, device="meta")
        for name, part in network.named_children():
            clip = part(clip)
            sizes[name] = tuple(clip.shape[1:])
    assert sizes["conv1"] == (64, 16, 80, 80)
    assert sizes["layer1"] == (256, 8, 40, 40)
    assert sizes["layer2"] == (512, 4, 20, 20)
    assert sizes["layer3"] == (1024, 2, 10, 10)
    assert sizes["frame"] == (1024, 10, 10)
    assert sizes["layer4"] == (2048, 5, 5)
    assert sizes["fc"] == (487,)


def test_blocks_take_turns(network: nn.Module) -> None:
    kinds = "".join(block.kind for block in network.modules() if isinstance(block, P3DBlock))
    assert kinds == ("ABC" * 16)[:47]


@pytest.mark.parametrize("kind", ["A", "B", "C"])
def test_a_block_joins_space_and_time_as_its_kind_says(kind: str) -> None:
    torch.manual_seed(0)
    block = P3DBlock(kind, in_channels=8, channels=2, stride=1)
    clip = torch.rand(2, 8, 3, 4, 4)

    def space(x: Tensor) -> Tensor:
        return functional.relu(block.space[1](functional.conv3d(x, block.space[0].weight, padding=(0, 1, 1))))  # type: ignore[operator, arg-type]

    def time(x: Tensor) -> Tensor:
        return block.time[1](functional.conv3d(x, block.time[0].weight, padding=(1, 0, 0)))  # type: ignore[operator, arg-type, no-any-return]

    reduced = block.reduce(clip)
    inner = {
        "A": lambda: time(space(reduced)),
        "B": lambda: space(reduced) + time(reduced),
        "C": lambda: space(reduced) + time(space(reduced)),
    }[kind]()
    expected = functional.relu(clip + block.expand(functional.relu(inner)))
    assert torch.equal(block(clip.clone()), expected)


def test_every_weight_gets_a_gradient() -> None:
    network = p3d_resnet(classes=3, blocks=(3, 1, 1, 1), channels=4)
    network(torch.randn(2, 3, 16, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
