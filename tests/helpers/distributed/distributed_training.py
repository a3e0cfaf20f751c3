"""The program of each of several processes: `torchrun ... -m tests.helpers.distributed.distributed_training OUTPUT`.

Each strategy and exchange on this process's share of a batch, whole and in micro-batches; the first process writes the
gradients.
"""

import sys
from contextlib import suppress
from itertools import product

import torch
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.libraries.distributed import joined
from membench.core.step.workload import Workload
from membench.planning.parallel.exchange import Exchange
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from membench.strategies.epmc import Epmc
from tests.helpers.devices import DEVICE, joined_processes
from tests.helpers.steps.variants import COMBINED_STRATEGIES

BATCH_SIZE = 8
MICRO_BATCHES = {"whole": None, "in micro-batches": 3}
CRITERION = nn.functional.cross_entropy


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 5)).to(DEVICE)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH_SIZE, 2, 8, 8).to(DEVICE), torch.randint(5, (BATCH_SIZE,)).to(DEVICE)


def share(tensor: Tensor, process: int, processes: int) -> Tensor:
    return tensor.chunk(processes)[process]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {name: weight.grad.cpu() for name, weight in module.named_parameters() if weight.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def main(output: str) -> None:
    found = {}
    with joined_processes():
        rank, count = joined().rank, joined().count
        module = network()
        if rank:  # it must start from the weights of the first process
            torch.nn.init.zeros_(module[0].weight)
        inputs, targets = (share(tensor, rank, count) for tensor in batch())
        captures = Captures(Workload("tiny", module, CRITERION, (inputs,), (targets,)), DEVICE)
        cost = MeasuredCost(DEVICE)
        with suppress(InfeasibleSchedule):  # the refusal of the first process is raised in all
            build_step(captures, cost, StepRequest(strategies()["eager"](), 1, exchange=Exchange.AS_MADE))
            raise AssertionError(f"process {rank} has a step in one byte")
        for strategy, exchange, how in product(COMBINED_STRATEGIES, Exchange, MICRO_BATCHES):
            # nothing is rounded
            chosen = Epmc(values="fp32") if strategy == Epmc.name else strategies()[strategy]()
            try:
                step = build_step(
                    captures, cost, StepRequest(chosen, micro_batch=MICRO_BATCHES[how], exchange=exchange)
                )
            except UnsupportedStrategy:
                continue
            step(inputs, targets)
            found[strategy, str(exchange), how] = gradients(module)
            step.close()
    if not rank:
        torch.save(found, output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
