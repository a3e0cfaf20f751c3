"""Networks for the contract tests: torchvision's classification models, small, on real numbers."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torchvision.models as zoo
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.shufflenetv2 import ShuffleNetV2
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from membench.capture.capture import CapturedStep, Captures, capture
from membench.core.libraries.torch_contexts import without_cudnn
from membench.core.step.workload import Workload
from membench.execution.measurement import peak_bytes
from membench.models.lstm import SequenceLoss, language_model
from membench.models.lstm_cnn import LSTMCNN
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.real.as_run import graph_as_run
from tests.helpers.devices import DEVICE

CLASSES = 10


def with_auxiliary(outputs: object, targets: Tensor) -> Tensor:
    """Cross entropy of the main output and 0.3 of each auxiliary one (GoogLeNet, Inception)."""
    main, *auxiliary = outputs  # type: ignore[misc]
    criterion = nn.functional.cross_entropy
    return criterion(main, targets) + sum(0.3 * criterion(a, targets) for a in auxiliary if a is not None)


@dataclass(frozen=True)
class Network:
    build: Callable[[], nn.Module]
    image_size: int = 64
    loss: Callable[..., Tensor] = nn.functional.cross_entropy
    tokens: int = 0  # in a sequence, for networks that classify each token


def _lstm_cnn() -> nn.Module:
    """Two frames of one video."""
    features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten())
    return LSTMCNN(features, feature_size=36, hidden_size=5, frames=2, classes=CLASSES)


def _named(name: str, **arguments: object) -> Callable[[], nn.Module]:
    return lambda: getattr(zoo, name)(num_classes=CLASSES, **arguments)


def _with_small_classifier(name: str, features: int) -> Callable[[], nn.Module]:
    """The classifiers of AlexNet and VGG hold over 100 million weights, which test nothing more.

    They are never initialised.
    """

    def build() -> nn.Module:
        with torch.device("meta"):
            module: nn.Module = getattr(zoo, name)()
        dropout = nn.Dropout(0.5)
        module.classifier = nn.Sequential(dropout, nn.Linear(features, 32), nn.ReLU(True), nn.Linear(32, CLASSES))
        module.to_empty(device="cpu")
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                layer.reset_parameters()
        return module

    return build


def _small_convnext() -> nn.Module:
    """ConvNeXt with a quarter of the smallest one's channels and 6 blocks of 18, as 28 million weights cost seconds."""
    widths = [(24, 48, 1), (48, 96, 1), (96, 192, 3), (192, None, 1)]
    return ConvNeXt([CNBlockConfig(*width) for width in widths], 0.1, num_classes=CLASSES)


def _small_efficientnet() -> nn.Module:
    """EfficientNet with five of the smallest one's sixteen blocks, whose tasks are of the same kinds as the rest."""
    stages = [(1, 3, 1, 16, 8, 1), (6, 3, 2, 8, 16, 2), (6, 5, 2, 16, 24, 2)]
    return EfficientNet(
        [MBConvConfig(*stage) for stage in stages],
        dropout=0.2,
        stochastic_depth_prob=0.2,
        num_classes=CLASSES,
        last_channel=96,
    )


ONLY_EXHAUSTIVE = {
    *("convnext", "efficientnet", "googlenet", "mnasnet", "mobilenet_v2", "mobilenet_v3", "regnet"),
    *("resnet50", "resnext50", "shufflenet", "swin", "vgg11_bn"),
}
"""Tested under every strategy by `make test-exhaustive` only; relatives of theirs are tested always."""

NETWORKS = {
    "alexnet": Network(_with_small_classifier("alexnet", 9216)),
    "convnext": Network(_small_convnext, image_size=32),
    "densenet": Network(
        lambda: DenseNet(
            growth_rate=8, block_config=(2, 3, 2), num_init_features=16, drop_rate=0.2, num_classes=CLASSES
        )
    ),
    "efficientnet": Network(_small_efficientnet, image_size=32),
    "googlenet": Network(_named("googlenet", init_weights=False, aux_logits=True), 64, with_auxiliary),
    "lstm": Network(lambda: language_model(vocabulary=CLASSES, hidden_size=6, layers=2), loss=SequenceLoss(), tokens=4),
    "lstm_cnn": Network(_lstm_cnn, image_size=16),
    "mnasnet": Network(_named("mnasnet0_5")),
    "mobilenet_v2": Network(
        lambda: MobileNetV2(CLASSES, 0.5, [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 3, 2]]), image_size=32
    ),
    "mobilenet_v3": Network(_named("mobilenet_v3_small"), image_size=32),
    "regnet": Network(_named("regnet_y_400mf"), image_size=32),
    "resnet18": Network(_named("resnet18")),
    "resnet50": Network(lambda: ResNet(Bottleneck, [2, 2, 2, 2], CLASSES, width_per_group=16), image_size=32),
    "resnext50": Network(_named("resnext50_32x4d"), image_size=32),
    "shufflenet": Network(lambda: ShuffleNetV2([2, 3, 2], [24, 48, 96, 192, 256], num_classes=CLASSES)),
    "squeezenet": Network(_named("squeezenet1_1")),
    "swin": Network(
        lambda: SwinTransformer(
            [4, 4], 24, [2, 2], [2, 4], [4, 4], dropout=0.1, stochastic_depth_prob=0.2, num_classes=CLASSES
        )
    ),
    "vgg11_bn": Network(_with_small_classifier("vgg11_bn", 25088), image_size=32),
    "vit": Network(lambda: VisionTransformer(32, 8, 2, 4, 48, 96, dropout=0.1, num_classes=CLASSES), image_size=32),
}


EACH_NETWORK = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name in ONLY_EXHAUSTIVE else []) for name in NETWORKS
]


class Layer(nn.Module):
    """A function of named layers and weights, so that a network is one line."""

    def __init__(self, function: Callable[..., object], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self, *inputs)


def workload(network: Network, name: str, batch_size: int = 2) -> Workload:
    torch.manual_seed(0)
    module = network.build().to(DEVICE)
    if network.tokens:
        tokens = torch.randint(CLASSES, (batch_size, network.tokens)).to(DEVICE)
        return Workload(name, module, network.loss, (tokens,), (tokens.roll(-1, dims=1),))
    images = torch.randn(batch_size, 3, network.image_size, network.image_size).to(DEVICE)
    targets = torch.randint(CLASSES, (batch_size,)).to(DEVICE)
    return Workload(name, module, network.loss, (images,), (targets,))


GRADIENT_BOUND = 4.0
"""Bound on the relative error of all gradients together, in units of the rounding of a saved activation.

The gradient of
each weight sums products with one rounded factor; terms that cancel raise its relative error."""


@dataclass(frozen=True)
class Results:
    """Loss, gradients and buffers after a training step."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]

    def difference(self, other: "Results") -> str:
        """Return the first result that is not the same bits, or an empty string."""
        if not _same(self.loss, other.loss):
            return f"loss {self.loss} and {other.loss}"
        for kind in ("gradients", "buffers"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            for name in ours.keys() | theirs.keys():
                if not _same(ours.get(name), theirs.get(name)):
                    return f"{kind[:-1]} of {name}"
        return ""

    def check(self, other: "Results", *, rounding: float) -> None:
        """Check that others are the same bits, or of a schedule that rounds, the same up to the bound on gradients."""
        exact, compared = (self, other) if not rounding else (replace(r, gradients={}) for r in (self, other))
        difference = exact.difference(compared)
        assert not difference, difference
        if rounding:
            assert self.gradient_error(other) <= GRADIENT_BOUND * rounding

    def gradient_error(self, other: "Results") -> float:
        """Return the relative error of the other's gradients, all weights' together, in the Euclidean norm."""
        assert self.gradients.keys() == other.gradients.keys()
        pairs = [(own, other.gradients[name]) for name, own in self.gradients.items() if own is not None]
        ours, theirs = (torch.cat([pair[i].flatten().cpu() for pair in pairs]) for i in range(2))
        return float((ours - theirs).norm() / ours.norm().clamp(min=torch.finfo().tiny))


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    """Compare bits, so that NaN equals NaN and 0.0 is not -0.0."""
    if first is None or second is None:
        return first is second
    return (first.dtype, first.shape) == (second.dtype, second.shape) and _bytes(first) == _bytes(second)


def _bytes(tensor: Tensor) -> bytes:
    """Return the elements; bfloat16, which NumPy lacks, as float32."""
    tensor = tensor.cpu().resolve_conj()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().tobytes()


def run_step(work: Workload, step: Callable[[], Tensor], buffers: dict[str, Tensor]) -> Results:
    """Run one step from the same state: given buffers, no gradients, the same generator state."""
    module = work.module
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = step()
    gradients = {
        n: None if p.grad is None else p.grad.clone(memory_format=torch.contiguous_format)
        for n, p in module.named_parameters()
    }
    results = Results(loss.detach().clone(), gradients, {n: b.clone() for n, b in module.named_buffers()})
    module.zero_grad(set_to_none=True)
    return results


@dataclass(frozen=True)
class Reference:
    """A captured network, with the results and the peak of one step in plain PyTorch.

    Attributes:
        repeats: plain PyTorch gives the same bits twice, as it does everywhere but on some GPUs.
    """

    work: Workload
    captured: CapturedStep
    buffers: dict[str, Tensor]
    results: Results
    peak_bytes: int
    repeats: bool = True

    def check(self, other: Results, *, rounding: float) -> None:
        """Check a step's results (`Results.check`), closely where plain PyTorch does not repeat its own."""
        if self.repeats:
            self.results.check(other, rounding=rounding)
            return
        torch.testing.assert_close(other.loss, self.results.loss)
        assert self.results.gradient_error(other) <= 1e-3 + GRADIENT_BOUND * rounding


class RecurrenceOfSteps(TorchFunctionMode):
    """Runs recurrent layers as steps do, which leave out cuDNN on a GPU: its sums are rounded differently."""

    _RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with without_cudnn() if func in self._RECURRENT and DEVICE.type == "cuda" else nullcontext():
            return func(*args, **(kwargs or {}))


COST = MeasuredCost(DEVICE)


def reference_of(work: Workload, captured: CapturedStep | None = None) -> Reference:
    """Run a step in plain PyTorch, and capture it unless that was done."""
    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}

    def eager() -> Tensor:
        with RecurrenceOfSteps():
            loss = work.loss(work.module(*work.inputs), *work.targets)
        loss.backward()
        return loss

    results = run_step(work, eager, buffers)
    repeats = DEVICE.type == "cpu" or not results.difference(run_step(work, eager, buffers))
    held_bytes = peak_bytes(eager, work.inputs[0].device)
    work.module.zero_grad(set_to_none=True)
    return Reference(work, captured or capture(work), buffers, results, held_bytes, repeats)


def as_run(work: Workload) -> Reference:
    """Return a network captured with the layouts that its operators have on this CPU, where shape functions differ."""
    captures = Captures(work)
    graph_as_run(captures, COST, work.batch_size)
    return reference_of(work, captures.at(work.batch_size))


@cache
def reference(name: str) -> Reference:
    return reference_of(workload(NETWORKS[name], name))
