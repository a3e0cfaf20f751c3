"""Joint against the other methods at their own peaks: ratios of step times, gaps to the lower bound, seconds of planning.

    python benchmarks/joint.py [models [devices]]

Names separated by commas; by default ten networks, three of which are in no configuration here, on three simulated devices.
"""

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import geometric_mean, median

import torch
from torch import Tensor, nn
from torchvision import models as zoo

from membench.capture.capture import Captures
from membench.core.configuration import load
from membench.core.schedule import RepeatedSchedule, Schedule
from membench.core.task_graph import TaskGraph
from membench.core.units import MIB
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.validate import validate
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import find_strategy
from membench.sweep.model import Model

OTHERS = ("memonger", "superneurons", "layrub_inter", "layrub_hybrid", "vdnn_all", "geeps")
DEVICES = ("k40m", "rtx3090", "a100_40gb")
CONFIGURED = {
    "resnet50": 32, "vgg16": 32, "densenet121": 32, "googlenet": 64, "inception_v3": 32, "vit_b_16": 32, "swin_t": 32
}  # fmt: skip
"""Batch sizes."""


class UNet(nn.Module):
    """Four levels of two convolutions with batch norm, down and up (Ronneberger et al. 2015)."""

    def __init__(self, widths: Sequence[int] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList([_twice(3, widths[0]), *(_twice(a, b) for a, b in pairs)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs)])
        self.joined = nn.ModuleList([_twice(2 * a, a) for a, _ in reversed(pairs)])
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for level in self.down[:-1]:
            skipped.append(level(x))
            x = self.pool(skipped[-1])
        x = self.down[-1](x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([skipped.pop(), up(x)], 1))
        return self.head(x)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers)


class Bert(nn.Module):
    """BERT-base's encoder with a classifier of two classes on the first token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(30522, 768), nn.TransformerEncoder(layer, 12)
        self.head = nn.Linear(768, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens))[:, 0])


OWN: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "resnext50": lambda: (zoo.resnext50_32x4d(), torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))),
    "unet": lambda: (UNet(), torch.randn(8, 3, 256, 256), torch.randint(2, (8, 256, 256))),
    "bert": lambda: (Bert(), torch.randint(30522, (16, 256)), torch.randint(2, (16,))),
}


def captured(name: str) -> TaskGraph:
    if name in CONFIGURED:
        batch_size = CONFIGURED[name]
        return Captures(Model.named(name).workload(batch_size, seed=0, device="meta")).graph_at(batch_size)
    with torch.device("meta"):
        module, inputs, targets = OWN[name]()
    workload = Workload(name, module, nn.CrossEntropyLoss(), (inputs,), (targets,))
    return Captures(workload).graph_at(workload.batch_size)


def time_s(schedule: Schedule, cost: RooflineCost) -> float:
    return simulated_step((RepeatedSchedule(schedule),), cost).step_time_s


def main(names: Sequence[str], devices: Sequence[str]) -> None:
    """Print a line for each network, device and method, and a summary."""
    ratios, gaps, seconds = [], [], []
    efficiency = load("framework", "pytorch").efficiency
    for name in names:
        graph = captured(name)
        for device in devices:
            cost = RooflineCost(load("device", device), efficiency)
            eager_s = time_s(find_strategy("eager")().schedule(graph, cost, None), cost)
            for other in OTHERS:
                rival = find_strategy(other)().schedule(graph, cost, None)
                start_s = time.process_time()
                joint = find_strategy("joint")().schedule(graph, cost, rival.peak_bytes)
                seconds.append(time.process_time() - start_s)
                validate(joint, budget_bytes=rival.peak_bytes)
                rival_s, joint_s = time_s(rival, cost), time_s(joint, cost)
                ratios.append(joint_s / rival_s)
                gaps.append(dict(joint.decisions)["gap"])
                print(
                    f"{name:13s} {device:10s} {other:14s} {rival.peak_bytes / MIB:7.0f} MiB   eager {eager_s * 1e3:7.1f} ms   "
                    f"{other} {rival_s * 1e3:7.1f} ms   joint {joint_s * 1e3:7.1f} ms   ratio {ratios[-1]:.3f}   "
                    f"gap {gaps[-1]:6.2%}   planned in {seconds[-1]:5.1f} s",
                    flush=True,
                )
    print(f"ratios: geometric mean {geometric_mean(ratios):.3f}, largest {max(ratios):.4f}")
    print(f"gaps to the lower bound: median {median(gaps):.2%}, largest {max(gaps):.2%}")
    print(f"planning: median {median(seconds):.1f} s, longest {max(seconds):.1f} s of CPU time")


if __name__ == "__main__":
    chosen = [argument.split(",") for argument in sys.argv[1:]]
    main(chosen[0] if chosen else [*CONFIGURED, *OWN], chosen[1] if len(chosen) > 1 else DEVICES)
