"""Inference with weights on the host: mmCNN against accelerate's `cpu_offload`, in one process, in turns.

For each network: accelerate; mmCNN with the memory that accelerate needed; mmCNN under 5 MB. On the CPU "device" memory
is what torch's allocator hands out, so accelerate is given copies of a state dict, as on a GPU. Prints peak memory
(input and visiting weights included) and the median time of an inference.

Needs accelerate: `pip install 'membench[bench]'`.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import torch
import torchvision.models as zoo
from torch import nn

import membench
from benchmarks.compare.copies import CopyMeter
from benchmarks.compare.peers.accelerate_offload import CopiedOnRead
from membench.core.units import MIB
from membench.execution.measurement import cpu_peak_bytes
from membench.models.alexnet import alexnet
from membench.models.vgg import vgg

ROUNDS = 7
SMALLEST = "5 MB"
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "alexnet": (alexnet, 227),
    "vgg19": (lambda: vgg(19), 224),
    **{
        name: (getattr(zoo, name), 224)
        for name in ("resnet18", "resnet50", "mobilenet_v2", "densenet121", "squeezenet1_1", "shufflenet_v2_x1_0")
    },
}


def in_turns_s(runs: list[Callable[[], object]]) -> list[float]:
    """Return each run's median time over rounds in which all take their turn, after a first one that is not timed."""
    times: list[list[float]] = [[] for _ in runs]
    for number in range(ROUNDS + 1):
        for run, taken in zip(runs, times, strict=True):
            start_s = time.perf_counter()
            run()
            if number:
                taken.append(time.perf_counter() - start_s)
    return [statistics.median(taken) for taken in times]


def compare(name: str) -> Iterator[tuple[str, float]]:
    """Yield each system with its time over accelerate's, and print what it needs."""
    from accelerate import cpu_offload

    build, size = NETWORKS[name]
    torch.manual_seed(0)
    module, images = build().eval(), torch.randn(1, 3, size, size)
    other = build().eval()
    other.load_state_dict(module.state_dict())
    cpu_offload(other, "cpu", offload_buffers=True, state_dict=CopiedOnRead(dict(module.state_dict()), CopyMeter(())))
    expected = other(images)
    theirs_bytes = images.nbytes + cpu_peak_bytes(lambda: other(images))
    steps = [
        membench.compile(module, None, (images, ()), strategy="mmcnn", budget=budget)
        for budget in (theirs_bytes, SMALLEST)
    ]
    peaks = [theirs_bytes, *(s.schedule.graph.external_bytes + cpu_peak_bytes(lambda s=s: s(images)) for s in steps)]
    times_s = in_turns_s([lambda: other(images), *(lambda s=s: s(images) for s in steps)])
    systems = ("accelerate", "mmcnn, as much", f"mmcnn, {SMALLEST}")
    outputs = (expected, *(step(images) for step in steps))
    for system, peak_bytes, time_s, output in zip(systems, peaks, times_s, outputs, strict=True):
        difference = (output - expected).abs().max() / expected.abs().max()
        print(
            f"{name:20s} {system:16s} {peak_bytes / MIB:8.2f} MB {time_s * 1e3:9.1f} ms   "
            f"time ratio {time_s / times_s[0]:5.2f}   largest difference {difference:.1e}",
            flush=True,
        )
        yield system, time_s / times_s[0]


def ratios(networks: Iterable[str] = NETWORKS) -> dict[str, float]:
    """Return mmCNN's time over accelerate's, by network and memory."""
    try:
        import accelerate
    except ImportError:
        print("inference_offload: not run, for accelerate is not installed; pip install 'membench[bench]'")
        return {}
    print(f"accelerate {accelerate.__version__} and mmCNN, {torch.get_num_threads()} threads, median of {ROUNDS}")
    with torch.no_grad():
        return {
            f"{system}: time of {network} over accelerate's": ratio
            for network in networks
            for system, ratio in list(compare(network))[1:]
        }


if __name__ == "__main__":
    ratios(sys.argv[1:] or NETWORKS)
