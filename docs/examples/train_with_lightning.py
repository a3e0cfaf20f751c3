"""Put a memory strategy under a module that Lightning trains, with automatic optimization, on this machine's CPU.

Lightning casts automatically, accumulates and clips gradients, validates, and resumes from its own checkpoint. Training
ends with the same bits as with the module itself. Needs `pip install 'membench[loops]'`.
"""

import copy
from tempfile import TemporaryDirectory

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import membench


class Classifier(lightning.LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.network(inputs), targets)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        inputs, targets = batch
        self.log("accuracy", (self.network(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.network.parameters(), lr=1e-2)

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(self.current_epoch)  # a checkpoint does not contain the random generator


def network() -> nn.Module:
    """Return a network with batch norm and dropout; any nn.Module will do."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))


def train(module: nn.Module, folder: str, checkpoint: str | None = None) -> nn.Module:
    """Train, from a checkpoint on if there is one, with a checkpoint after each epoch; return the module."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(20, 8, generator=generator), torch.randint(10, (20,), generator=generator)
    batches = DataLoader(TensorDataset(inputs, targets), 8, generator=generator)  # the last batch is smaller
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(folder, "after_{epoch}", save_top_k=-1)],
        **quiet,
    )
    trainer.fit(Classifier(module), batches, batches, ckpt_path=checkpoint)
    return module


def main() -> None:
    """Train a module, the same one wrapped, and a wrapped one again from the checkpoint of half way."""
    module = network()
    wrapped = membench.wrap(copy.deepcopy(module), strategy="layrub_hybrid", budget="20 MB")
    again = membench.wrap(copy.deepcopy(module), strategy="memonger")
    with TemporaryDirectory() as theirs, TemporaryDirectory() as ours, TemporaryDirectory() as third:
        plain, trained = train(module, theirs), train(wrapped, ours)
        resumed = train(again, third, f"{ours}/after_epoch=0.ckpt")
    print(f"{len(wrapped.wrapped_calls.steps)} kinds of calls")
    for name, other in (("wrapped", trained), ("resumed", resumed)):
        same = all(map(Tensor.equal, plain.state_dict().values(), other.state_dict().values()))
        print(f"{name}: the same weights, bit for bit" if same else f"{name}: other weights")


if __name__ == "__main__":
    main()
