"""The networks of the comparison, their sizes, and the blocks that a user would checkpoint in each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torchvision.models.vgg import VGG

from membench.core.configuration import read
from membench.core.step.workload import Workload
from membench.sweep.cells.model import Model

DEVICE = "cpu"
"""Where a network and its batch are made, the same values for every device."""


@dataclass(frozen=True)
class Network:
    """A file of ``conf/model`` at a size that a CPU runs in about a second.

    Attributes:
        size: options of the file that are replaced.
        zeros: weights that start at zero and get random numbers here: behind a head of zeros every other gradient is
            zero, and no method could be wrong.
        blocks: return the modules of a network that are checkpointed, each called once in a forward pass.
    """

    model: str
    batch_size: int
    blocks: Callable[[nn.Module], list[nn.Module]]
    size: Mapping[str, Any] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()

    @property
    def described_size(self) -> str:
        """What is replaced, for a title: ``, 64 x 64``."""
        shape, tokens = self.size.get("input_shape"), self.size.get("sequence_length")
        return f", {shape[1]} x {shape[2]}" if shape else f", {tokens} tokens" if tokens else ""

    def training(self) -> Workload:
        """Return a step of training with the seed's weights and batch."""
        options = {**read("model", self.model), **self.size}
        workload = Model.from_configuration(options).workload(self.batch_size, seed=0, device=DEVICE)
        generator = torch.Generator().manual_seed(0)
        for name in self.zeros:
            nn.init.normal_(workload.module.get_parameter(name), std=0.02, generator=generator)
        if isinstance(workload.module, VGG):
            workload.module.features = _grouped(workload.module.features)
        return workload

    def inference(self) -> Workload:
        """Return a step of inference with the seed's weights and batch."""
        workload = self.training()
        return replace(workload, module=workload.module.eval(), loss=None, targets=())


def _of_class(name: str) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda module: [each for each in module.modules() if type(each).__name__ == name]


def _children_of(*names: str) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda module: [child for name in names for child in module.get_submodule(name).children()]


def _grouped(layers: nn.Sequential) -> nn.Sequential:
    """Return VGG's layers in groups that end with a pooling: the same arithmetic and order of weights."""
    groups, group = [], nn.Sequential()
    for layer in layers:
        group.append(layer)
        if isinstance(layer, nn.MaxPool2d):
            groups.append(group)
            group = nn.Sequential()
    return nn.Sequential(*groups)


def _images(pixels: int) -> dict[str, Any]:
    return {"input_shape": [3, pixels, pixels]}


NETWORKS = {
    "resnet50": Network("resnet50", 8, _of_class("ShortcutFirstBottleneck"), _images(64)),
    "vgg16": Network("vgg16", 4, _children_of("features"), _images(128)),
    "densenet121": Network("densenet121", 8, _of_class("_DenseLayer"), _images(64)),
    "googlenet": Network("googlenet", 2, _of_class("Inception")),
    "unet": Network("unet", 2, _children_of("down", "up"), {**_images(64), "target_shape": [64, 64]}),
    "mobilenet_v2": Network("mobilenet_v2", 8, _of_class("InvertedResidual"), _images(96)),
    "vit_b_16": Network("vit_b_16", 4, _of_class("EncoderBlock"), zeros=("heads.head.weight",)),
    "gpt2": Network("gpt2", 1, _of_class("GPT2Block"), {"sequence_length": 512}),
}
