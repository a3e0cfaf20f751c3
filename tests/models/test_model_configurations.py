"""Every file in conf/model, on the meta device."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from membench.core.configuration import read
from membench.core.graph.task_graph import Role
from membench.sweep.cells.model import Model
from tests.helpers.planning.graphs import captured_model, held

CONFIGURATIONS = Path(__file__).parents[2] / "conf" / "model"
NAMES = sorted(path.stem for path in CONFIGURATIONS.glob("*.yaml") if "inputs" not in read("model", path.stem))
"""Those of one input; `test_hugging_face` tests the others."""
ONLY_EXHAUSTIVE = {"resnet1001", "resnet1001_cifar", "resnet1172", "resnet1304"}
"""Seconds each; resnet1517, the deepest of their family, is tested by `make test-slow`."""
SLOW = {"resnet695", "resnet1517"}
KEYS = {"name", "module", "loss", "input_shape", "classes", "batch_size"}
KEYS_OF_SEQUENCES = {"vocabulary", "target_shape"}
TORCHVISION = {
    "vit_b_16": 86_567_656,
    "swin_t": 28_288_354,
    "convnext_t": 28_589_128,
    "densenet121": 7_978_856,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_large": 5_483_032,
    "efficientnet_b0": 5_288_548,
    "inception_v3": 23_834_568,
}
"""Parameters of these networks as torchvision publishes them; Inception-v3 is without its auxiliary classifier."""
Build = Callable[[str], nn.Module]


def test_there_are_configurations() -> None:
    assert {"resnet1517", "wrn8_256", "vgg516", "googlenet", "digits_cnn"} <= set(NAMES)


def _example(name: str) -> tuple[Tensor, Tensor]:
    """A batch of two images, of two short sequences, or of one video."""
    model = read("model", name)
    if len(model.get("target_shape", ())) == 1:
        model |= {"target_shape": [3], "input_shape": [3, *model["input_shape"][1:]]}
    with torch.device("meta"):
        [inputs], [targets] = Model.from_configuration(model).example_batch(model["module"].get("frames", 2))
    return inputs, targets


@pytest.mark.parametrize(
    "name",
    [
        *sorted(set(NAMES) - SLOW - ONLY_EXHAUSTIVE),
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(SLOW)),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in sorted(ONLY_EXHAUSTIVE)),
    ],
)
def test_output_has_the_classes(name: str, configured_model: Build) -> None:
    configuration = OmegaConf.load(CONFIGURATIONS / f"{name}.yaml")
    assert KEYS <= set(configuration) <= KEYS | KEYS_OF_SEQUENCES
    assert configuration.name == name
    assert configuration.batch_size > 0
    model = configured_model(name).eval()
    inputs, targets = _example(name)
    with torch.no_grad():
        logits = model(inputs)
    if targets.dim() == 3:  # one class for each pixel: classes are channels
        logits = logits.movedim(1, -1)
    assert logits.shape == (*targets.shape, configuration.classes)
    if name not in TORCHVISION:  # MobileNetV3's ReLUs of squeeze-and-excitation are not in place
        assert all(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "resnet50",
        "resnet56_cifar",
        "wrn16_1",
        "wrn8_256",
        "alexnet",
        "alexnet_owt",
        "caffenet",
        "overfeat",
        "vgg16",
        "fcn8s",
        "googlenet",
        "lenet",
        "cifar10_quick",
        "digits_cnn",
    ],
)
def test_training_step(name: str, configured_model: Build) -> None:
    """No in-place layer destroys what the backward pass needs; every layer runs once, and gets gradients."""
    configuration = OmegaConf.load(CONFIGURATIONS / f"{name}.yaml")
    model = configured_model(name).train()
    calls: Counter[str] = Counter()
    leaves = [(leaf, module) for leaf, module in model.named_modules() if not list(module.children())]
    hooks = [module.register_forward_hook(lambda *_, leaf=leaf: calls.update([leaf])) for leaf, module in leaves]
    inputs, targets = _example(name)
    outputs = model(inputs)
    for hook in hooks:
        hook.remove()
    if not isinstance(model, ResNet):  # torchvision's blocks call one ReLU two or three times
        assert calls == {leaf: 1 for leaf, _ in leaves}

    instantiate(configuration.loss)(outputs, targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_networks_of_torchvision_are_captured_with_the_published_parameters(name: str) -> None:
    """The captured weights have the published size, and each gets a gradient: none is missing or frozen."""
    graph = captured_model(name, 2)
    expected = {Role.WEIGHT: 4 * TORCHVISION[name], Role.WEIGHT_GRADIENT: 4 * TORCHVISION[name]}
    assert {role: held(graph, role) for role in expected} == expected
