"""Train a model of your own under a memory strategy, on this machine's CPU.

Shows the one line of the training loop that changes, the memory that a strategy saves, that the loss is the same
to the bit, and the error for a budget that cannot be kept. With backend="cuda" the same step runs on a GPU.
"""

import copy

import torch
from torch import nn

import membench
from membench.core.errors import InfeasibleSchedule


def network() -> nn.Module:
    """Return four convolutional blocks and a classifier of ten classes; any nn.Module will do."""
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 32), (32, 32), (32, 32), (32, 32)):
        layers += [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def train(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, strategy: str) -> float:
    """Take three steps of SGD and return the last loss."""
    step = membench.compile(module, nn.functional.cross_entropy, (inputs, targets), strategy=strategy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    loss = 0.0
    for _ in range(3):
        optimizer.zero_grad()
        # in place of: loss = criterion(module(inputs), targets); loss.backward()
        loss = step(inputs, targets).item()
        optimizer.step()
    print(f"{strategy:<14} {step.predicted_peak_bytes / 2**20:6.1f} MB   loss {loss!r}")
    return loss


def main() -> None:
    """Compare three strategies on one model, then request a budget below the lower bound."""
    torch.manual_seed(0)
    model = network()
    inputs, targets = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    losses = {train(copy.deepcopy(model), inputs, targets, name) for name in ("eager", "layrub_hybrid", "memonger")}
    print("the same loss, bit for bit" if len(losses) == 1 else f"different losses: {losses}")
    try:
        membench.compile(model, nn.functional.cross_entropy, (inputs, targets), strategy="layrub_hybrid", budget="4 MB")
    except InfeasibleSchedule as refusal:
        print(refusal)


if __name__ == "__main__":
    main()
