"""Overhead of membench itself: `eager` through membench against plain PyTorch, alternating in one process.

Prints the ratio of median step times and of peak memory for several networks on the CPU; 1.00 means no cost.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torchvision.models as zoo
from torch import Tensor, nn

import membench
from membench.execution.measurement import cpu_peak_bytes

ROUNDS = 15
NETWORKS = {
    "resnet18": 64,
    "resnet50": 64,
    "mobilenet_v2": 64,
    "densenet121": 64,
    "vgg11_bn": 32,
    "convnext_tiny": 64,
}


def timed(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def compare(name: str, image_size: int) -> str:
    torch.manual_seed(0)
    module = getattr(zoo, name)(num_classes=10)
    inputs, targets = torch.randn(8, 3, image_size, image_size), torch.randint(10, (8,))
    criterion = nn.functional.cross_entropy
    step = membench.compile(module, criterion, (inputs, targets), strategy="eager")
    assert isinstance(step, membench.CompiledStep)

    def plain() -> Tensor:
        module.zero_grad()
        loss: Tensor = criterion(module(inputs), targets)
        loss.backward()
        return loss.detach()

    def ours() -> Tensor:
        module.zero_grad()
        return step(inputs, targets)

    for run in (plain, ours, plain, ours):
        run()
    times_s = [(timed(plain), timed(ours)) for _ in range(ROUNDS)]
    plain_s, ours_s = (statistics.median(column) for column in zip(*times_s, strict=True))
    peaks = []
    for run in (plain, ours):
        module.zero_grad()
        peaks.append(cpu_peak_bytes(run))
    return f"{name:15s} {plain_s * 1e3:8.1f} ms {ours_s * 1e3:8.1f} ms   time ratio {ours_s / plain_s:5.3f}   peak ratio {peaks[1] / peaks[0]:6.4f}"


if __name__ == "__main__":
    print(f"plain PyTorch against membench eager, {torch.get_num_threads()} threads, median of {ROUNDS}")
    for network, size in NETWORKS.items():
        print(compare(network, size), flush=True)
