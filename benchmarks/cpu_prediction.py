"""Accuracy of step times predicted for this machine's CPU, from operators that are timed in isolation.

    python benchmarks/cpu_prediction.py                 six networks under eager and three strategies
    python benchmarks/cpu_prediction.py resnet18 gpt2   some of them

Predicted over measured; the median of alternating rounds, in each of which operators are timed anew.
"""

import os
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import torch

from membench.capture.capture import Captures
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import find_strategy
from membench.sweep.cells.measured import CPU_ENVIRONMENT
from membench.sweep.cells.model import Model

NETWORKS = {"resnet18": 4, "resnet50": 2, "vgg16": 1, "mobilenet_v2": 4, "vit_b_16": 1, "gpt2": 1}
"""Batch sizes."""
STRATEGIES = ("eager", "network_wide", "vdnn_all", "layrub_hybrid")
ROUNDS = 3
TOKENS = 128
"""Of a sequence; GPT-2's 1,024 take a minute."""


def ratio(network: str, strategy: str) -> float:
    """Return the predicted over the measured step time."""
    model = Model.named(network)
    if network == "gpt2":
        model = replace(model, sizes={**model.sizes, "sequence_length": TOKENS})
    cost = MeasuredCost(torch.device("cpu"))
    captures = Captures(model.workload(NETWORKS[network], seed=0, device="cpu"), cost.device)
    step = build_step(captures, cost, StepRequest(find_strategy(strategy)()))
    predicted_s = simulated_step(step.plan, cost).step_time_s
    measured_s = step.measure().step_time_s
    step.close()
    print(f"  {network} {strategy}: predicted {predicted_s:.3f} s, measured {measured_s:.3f} s", flush=True)
    return predicted_s / measured_s


def ratios(networks: Iterable[str] = NETWORKS) -> dict[str, float]:
    """Return the median of predicted over measured step times, by network and strategy."""
    medians: dict[str, float] = {}
    for network in networks:
        found: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
        for _ in range(ROUNDS):
            for strategy in STRATEGIES:
                found[strategy].append(ratio(network, strategy))
        of_network = {strategy: statistics.median(values) for strategy, values in found.items()}
        print(f"{network}: {', '.join(f'{name} {value:.2f}' for name, value in of_network.items())}", flush=True)
        medians |= {
            f"{network}, {strategy}: predicted over measured time": value for strategy, value in of_network.items()
        }
    return medians


if __name__ == "__main__":
    os.environ.update(CPU_ENVIRONMENT)  # glibc reads it when a process starts
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(ratios, sys.argv[1:] or list(NETWORKS)).result()
