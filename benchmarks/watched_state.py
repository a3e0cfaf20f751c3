"""Cost of comparing what a step reads of Python with the capture's before each call, and of occasional recordings.

Two networks: 200 layers of two numbers or tensors each, and a convolutional network whose step takes some 10 ms. Prints
microseconds of the comparison, in turns with the step; the part for modes, weights and hooks, and that for attributes
and variables.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import membench
from membench.steps.real.compiled_step import CompiledStep

ROUNDS = 200


def _layers() -> tuple[nn.Module, torch.Tensor]:
    layers = [layer for _ in range(100) for layer in (nn.Linear(8, 8), nn.Dropout(0.1))]
    return nn.Sequential(*layers), torch.randn(4, 8)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        layer
        for _ in range(8)
        for layer in (nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.Flatten(1)), torch.randn(4, 3, 32, 32)


def _taken_s(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def ratios() -> dict[str, float]:
    """Return the median time of the comparison over that of the step, for each network, and the recordings' share."""
    torch.manual_seed(0)
    found = {}
    for name, (module, inputs) in (("200 layers", _layers()), ("convolutions", _convolutions())):
        step = membench.compile(module, lambda out: out.square().mean(), (inputs, ()))
        assert isinstance(step, CompiledStep)
        parts = {
            "comparison": step.watched.check,
            "of which attributes and variables": step.watched.reads_are_unchanged,
        }
        step(inputs)
        times: dict[str, list[float]] = {name: [] for name in ("step", *parts, "comparison again, in warm caches")}
        for _ in range(ROUNDS):
            module.zero_grad()
            times["step"].append(_taken_s(lambda: step(inputs)))  # noqa: B023 (called at once)
            for part, run in parts.items():
                times[part].append(_taken_s(run))
            times["comparison again, in warm caches"].append(_taken_s(step.watched.check))
        medians_s = {part: statistics.median(taken) for part, taken in times.items()}
        print(name + ": " + ", ".join(f"{part} {taken * 1e6:.0f} us" for part, taken in medians_s.items()))
        found[f"{name}: comparison over the step"] = medians_s["comparison"] / medians_s["step"]
        found[f"{name}: recordings over the steps"] = step.watched.share_of_recordings
    return found


if __name__ == "__main__":
    ratios()
