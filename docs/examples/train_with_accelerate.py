"""Put a memory strategy under a module in a loop of accelerate, on this machine's CPU.

The loop casts automatically, accumulates and clips gradients, and resumes from accelerate's own checkpoint. It ends
with the same bits as with the module itself. Needs `pip install 'membench[loops]'`.
"""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import membench

EPOCHS = 2


def network() -> nn.Module:
    """Return a network with batch norm and dropout; any nn.Module will do."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def train(module: nn.Module, folder: Path, checkpoint: Path | None = None) -> nn.Module:
    """Train, from a checkpoint on if there is one, with a checkpoint after each epoch; return the module."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(20, 8, generator=generator), torch.randint(10, (20,), generator=generator)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    model, optimizer, batches, schedule = accelerator.prepare(
        module,
        optimizer,
        DataLoader(TensorDataset(inputs, targets), batch_size=8),  # the last batch is smaller
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * EPOCHS),
    )
    torch.manual_seed(2)
    if checkpoint:
        accelerator.load_state(checkpoint)
    for epoch in range(EPOCHS):
        if checkpoint and epoch <= int(checkpoint.name):
            continue
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.save_state(folder / str(epoch))
    return accelerator.unwrap_model(model)


def main() -> None:
    """Train a module, the same one wrapped, and a wrapped one again from the checkpoint of half way."""
    module = network()
    wrapped = membench.wrap(copy.deepcopy(module), strategy="layrub_hybrid", budget="20 MB")
    again = membench.wrap(copy.deepcopy(module), strategy="memonger")
    with TemporaryDirectory() as theirs, TemporaryDirectory() as ours, TemporaryDirectory() as third:
        plain, trained = train(module, Path(theirs)), train(wrapped, Path(ours))
        resumed = train(again, Path(third), Path(ours, "0"))
    print(f"{len(wrapped.wrapped_calls.steps)} kinds of calls")
    for name, other in (("wrapped", trained), ("resumed", resumed)):
        same = all(map(Tensor.equal, plain.state_dict().values(), other.state_dict().values()))
        print(f"{name}: the same weights, bit for bit" if same else f"{name}: other weights")


if __name__ == "__main__":
    main()
