"""Accuracy of step times predicted from operators measured in isolation, and the kinds of task that deviate.

A ratio above 1 means that the step took longer than predicted. The clock around every task adds to each some
microseconds.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch.nn.functional import cross_entropy

from membench.backends.real import real_device
from membench.capture.capture import Captures
from membench.core.graph.schedule import Compute
from membench.core.graph.timeline import Span
from membench.core.step.workload import Workload
from membench.models.resnet import imagenet_resnet
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import find_strategy

STRATEGIES = ("eager", "layrub_hybrid", "vdnn_all")


def resnet(depth: int, batch_size: int, image_size: int, device: torch.device) -> Workload:
    torch.manual_seed(0)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    return Workload(f"resnet{depth}", imagenet_resnet(depth).to(device), cross_entropy, (images,), (labels,))


def report(work: Workload, strategy: str, cost: MeasuredCost) -> float:
    """Print a step's kinds of tasks and return its measured over its predicted time."""
    step = build_step(Captures(work, cost.device), cost, StepRequest(find_strategy(strategy)()))
    predicted = simulated_step(step.plan, cost)
    measured = step.measure()
    step.close()
    tasks = step.plan[0].schedule.graph.tasks
    issue_s = sum(cost.task_issue_time_s(task) for task in tasks)
    print(
        f"{work.name} batch {work.batch_size} {strategy}: predicted {predicted.step_time_s * 1e3:.2f} ms, measured "
        f"{measured.step_time_s * 1e3:.2f} ms (ratio {measured.step_time_s / predicted.step_time_s:.3f}); the host's "
        f"issuing of tasks {issue_s * 1e3:.2f} ms",
        flush=True,
    )
    alone_s: defaultdict[str, float] = defaultdict(float)
    in_step_s: defaultdict[str, float] = defaultdict(float)
    for span in measured.timelines[0].spans:
        instruction = step.plan[0].schedule.instructions[span.instruction]
        if isinstance(instruction, Compute):
            task = tasks[instruction.task]
            alone_s[task.kind] += cost.task_time_s(task)
            in_step_s[task.kind] += _seconds(span)
    for kind in sorted(alone_s, key=lambda kind: -in_step_s[kind]):
        ratio = in_step_s[kind] / alone_s[kind]
        print(
            f"  {kind:20s} alone {alone_s[kind] * 1e3:8.2f} ms, in the step {in_step_s[kind] * 1e3:8.2f} ms, ratio "
            f"{ratio:.2f}"
        )
    return measured.step_time_s / predicted.step_time_s


def _seconds(span: Span) -> float:
    return span.end_s - span.start_s


def ratios(depths: Iterable[int] = (50,)) -> dict[str, float]:
    """Return measured over predicted times, by depth and strategy."""
    found = {}
    on_gpu = torch.cuda.is_available()
    target = real_device("cuda" if on_gpu else "cpu")
    costs = MeasuredCost(target)
    for network in depths:
        example = resnet(network, 32 if on_gpu else 4, 224 if on_gpu else 64, target)
        for name in STRATEGIES:
            found[f"resnet{network}, {name}: measured over predicted time"] = report(example, name, costs)
    return found


if __name__ == "__main__":
    ratios([int(word) for word in sys.argv[1:]] or [50])
