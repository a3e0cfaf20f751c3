"""Put a memory strategy under a training loop that stays as it is, on this machine's CPU.

The loop has AdamW, clipping, a learning-rate schedule, autocast, accumulation over batches of two sizes, an average of
the weights, and a checkpoint from which training goes on. It ends with the same bits as with the module itself.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import membench

EPOCHS, CLASSES = 4, 10


def network() -> nn.Module:
    """Return a network with batch norm and dropout; any nn.Module will do."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, CLASSES)]
    return nn.Sequential(*body, *head)


def train(module: nn.Module, checkpoint: dict[str, Any] | None = None) -> tuple[dict[str, Any], nn.Module]:
    """Train, from a checkpoint on if there is one; return the checkpoint of half way and the average of the weights."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(20, 3, 16, 16, generator=generator).split(8)  # the last batch is smaller
    labels = torch.randint(CLASSES, (20,), generator=generator).split(8)
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    parts = {"module": module, "average": average, "optimizer": optimizer, "schedule": schedule}
    torch.manual_seed(2)
    if checkpoint:
        torch.set_rng_state(checkpoint["random"])
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
    halfway: dict[str, Any] = {}
    for epoch in range(schedule.last_epoch, EPOCHS):
        if epoch == EPOCHS // 2:
            states = {name: part.state_dict() for name, part in parts.items()}
            halfway = copy.deepcopy(states | {"random": torch.get_rng_state()})  # or torch.save
        optimizer.zero_grad()
        for inputs, targets in zip(images, labels, strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(module(inputs), targets, reduction="sum") / 20
            loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(module)
    return halfway, average


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    """Return whether all weights and buffers are the same bits."""
    return all(map(Tensor.equal, ours.state_dict().values(), theirs.state_dict().values()))


def main() -> None:
    """Train a module, the same one wrapped, and the wrapped one again from the checkpoint of half way."""
    module = network()
    wrapped = membench.wrap(copy.deepcopy(module), strategy="layrub_hybrid", budget="20 MB")
    again = membench.wrap(copy.deepcopy(module), strategy="memonger")
    plain, (checkpoint, average) = train(module)[1], train(wrapped)
    _, resumed = train(again, checkpoint)
    steps = wrapped.wrapped_calls.steps
    print(f"{len(steps)} kinds of calls, at most {wrapped.wrapped_calls.predicted_peak_bytes / 2**20:.1f} MB")
    print("the same weights, bit for bit" if same(plain, average) else "different weights")
    print("resumed to the same weights, bit for bit" if same(average, resumed) else "resumed to other weights")


if __name__ == "__main__":
    main()
