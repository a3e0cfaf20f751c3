"""Small networks that every strategy has to schedule: torchvision's classification models, on real numbers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torchvision.models as zoo
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.shufflenetv2 import ShuffleNetV2
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from membench.core.step.workload import Workload
from membench.models.lstm import SequenceLoss, language_model
from membench.models.lstm_cnn import LSTMCNN

CLASSES = 10


def with_auxiliary(outputs: Iterable[Tensor], targets: Tensor) -> Tensor:
    """Cross entropy of the main output and 0.3 of each auxiliary one (GoogLeNet, Inception)."""
    main, *auxiliary = outputs
    criterion = nn.functional.cross_entropy
    return criterion(main, targets) + sum(0.3 * criterion(each, targets) for each in auxiliary if each is not None)


@dataclass(frozen=True)
class Network:
    """How a network is built, what it takes and how its loss is computed."""

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
OF_EVERY_KIND = ("alexnet", "densenet", "lstm", "resnet18", "vit")
"""Those that differ in kind; the others are their relatives.

`membench check` runs strategies on these, `make test` and `make test-slow` their options, too.
"""


def workload_of(name: str, device: torch.device, batch_size: int = 2) -> Workload:
    """Return a network of `NETWORKS` with a batch of random samples; equal calls return equal numbers."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    module = network.build().to(device)
    if network.tokens:
        tokens = torch.randint(CLASSES, (batch_size, network.tokens)).to(device)
        return Workload(name, module, network.loss, (tokens,), (tokens.roll(-1, dims=1),))
    images = torch.randn(batch_size, 3, network.image_size, network.image_size).to(device)
    targets = torch.randint(CLASSES, (batch_size,)).to(device)
    return Workload(name, module, network.loss, (images,), (targets,))
