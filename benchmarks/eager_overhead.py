"""Overhead of membench itself: `eager` through membench against plain PyTorch, alternating in one process.

    python benchmarks/eager_overhead.py                       all networks
    python benchmarks/eager_overhead.py resnet18 gpt2         some of them

Prints for each network on the CPU the median of the rounds' ratios of CPU time, and the ratio of peak memory; 1.00
means no cost. CPU time, because other programs on the machine do not add to it.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchvision.models as zoo
from torch import Tensor, nn

import membench
from membench.execution.measurement import cpu_peak_bytes
from membench.models.hugging_face import OwnLoss, network

ROUNDS = 15
BATCH_SIZE = 8
IMAGE_SIZES = {
    "resnet18": 64,
    "resnet50": 64,
    "mobilenet_v2": 64,
    "densenet121": 64,
    "vgg11_bn": 32,
    "convnext_tiny": 64,
    "vit_b_16": 64,
}
TOKENS, VOCABULARY = 32, 50257
NETWORKS = (*IMAGE_SIZES, "gpt2")


def timed(run: Callable[[], object]) -> float:
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def example(name: str) -> tuple[nn.Module, Callable[..., Tensor], Any, Any]:
    """Return a network, its loss, inputs and targets."""
    torch.manual_seed(0)
    if name == "gpt2":
        tokens = torch.randint(VOCABULARY, (BATCH_SIZE, TOKENS))
        gpt = network("gpt2", n_layer=12, n_embd=768, n_head=12)
        return gpt, OwnLoss(), {"input_ids": tokens, "labels": tokens}, ()
    size = IMAGE_SIZES[name]
    options = {"image_size": size} if name == "vit_b_16" else {}
    inputs, targets = torch.randn(BATCH_SIZE, 3, size, size), torch.randint(10, (BATCH_SIZE,))
    return getattr(zoo, name)(num_classes=10, **options), nn.functional.cross_entropy, inputs, targets


def compare(name: str) -> tuple[float, float]:
    """Return the ratios of time and peak memory, and print them."""
    module, criterion, inputs, targets = example(name)
    step = membench.compile(module, criterion, (inputs, targets), strategy="eager")
    assert isinstance(step, membench.CompiledStep)

    def plain() -> Tensor:
        module.zero_grad()
        output = module(**inputs) if isinstance(inputs, dict) else module(inputs)
        loss = criterion(output) if isinstance(inputs, dict) else criterion(output, targets)
        loss.backward()
        return loss.detach()

    def ours() -> Tensor:
        module.zero_grad()
        result: Tensor = step(inputs, targets)
        return result

    for run in (plain, ours, plain, ours):
        run()
    times_s = [(timed(plain), timed(ours)) for _ in range(ROUNDS)]
    plain_s = statistics.median(plain_s for plain_s, _ in times_s)
    ratio = statistics.median(ours_s / plain_s for plain_s, ours_s in times_s)
    peaks = []
    for run in (plain, ours):
        module.zero_grad()
        peaks.append(cpu_peak_bytes(run))
    tasks = len(step.schedule.graph.tasks)
    print(
        f"{name:15s} {plain_s * 1e3:8.1f} ms {tasks:6d} tasks   time ratio {ratio:5.3f}   peak ratio "
        f"{peaks[1] / peaks[0]:6.4f}",
        flush=True,
    )
    return ratio, peaks[1] / peaks[0]


def ratios(networks: Sequence[str] = NETWORKS) -> dict[str, float]:
    """Return `eager`'s CPU time and peak over plain PyTorch's, by network."""
    print(f"plain PyTorch against membench eager, {torch.get_num_threads()} threads, median of {ROUNDS}")
    found = {name: compare(name) for name in networks}
    return {
        f"{quantity} over plain PyTorch's, {name}": pair[place]
        for place, quantity in enumerate(("time", "peak"))
        for name, pair in found.items()
    }


if __name__ == "__main__":
    ratios(sys.argv[1:] or NETWORKS)
