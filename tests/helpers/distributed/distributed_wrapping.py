"""The program of each of several processes: `torchrun ... -m tests.helpers.distributed.distributed_wrapping OUTPUT`.

Torch's own data parallelism around a module, and around the wrapped module; the first process writes what they end
with.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import membench
from membench.core.libraries.distributed import joined
from tests.helpers.devices import DEVICE, joined_processes

BATCH_SIZE, STEPS = 8, 2
STRATEGIES = ("eager", "layrub_hybrid", "memonger")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 5)]
    return nn.Sequential(*layers).to(DEVICE)


def train(module: nn.Module) -> list[Tensor]:
    """Take steps on this process's share of each batch; return gradients, weights and buffers."""
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    torch.manual_seed(2 + joined().rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        images, labels = (torch.randn(BATCH_SIZE, 2, 8, 8).to(DEVICE), torch.randint(5, (BATCH_SIZE,)).to(DEVICE))
        nn.functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
    gradients = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
    return [each.cpu() for each in (*gradients, *module.state_dict().values())]


def main(output: str) -> None:
    with joined_processes():
        found = {"plain": train(network())}
        for strategy in STRATEGIES:
            found[strategy] = train(membench.wrap(network(), strategy=strategy, backend=DEVICE.type))
        if not joined().rank:
            torch.save(found, output)


if __name__ == "__main__":
    main(sys.argv[1])
