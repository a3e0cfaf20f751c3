"""A small network, and what programs put around it, into it and in place of its parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import accelerate
import lightning
import peft
import timm
import torch
from accelerate.hooks import attach_align_device_hook
from torch import Tensor, nn
from torch.ao import quantization
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

CLASSES = 4
INPUTS = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(6) % CLASSES


class Net(nn.Module):
    """Four layers; `around` runs the rest of the forward pass, for what a program does within it."""

    around: Callable[["Net", Tensor], Tensor] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(12)
        self.second = nn.Linear(12, 8)
        self.head = nn.Linear(8, CLASSES)

    def features(self, images: Tensor) -> Tensor:
        return self.second(functional.gelu(self.norm(self.first(images))))

    def plain(self, images: Tensor) -> Tensor:
        return self.head(functional.relu(self.features(images)))

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images) if self.around is None else type(self).around(self, images)


@dataclass(frozen=True)
class Case:
    """A module, and how it is called.

    Attributes:
        is_measured: a step frees only what it has allocated; of the rest an allocator's record lacks the sizes.
    """

    module: nn.Module
    loss: Callable[..., Tensor] = functional.cross_entropy
    inputs: Any = INPUTS
    is_measured: bool = True


def changed(change: Callable[[Net], Any], **options: Any) -> Callable[[], Case]:
    """Return a function that makes a network and changes it."""

    def build() -> Case:
        torch.manual_seed(0)
        network = Net()
        change(network)
        return Case(network, **options)

    return build


def within(forward: Callable[[Net, Tensor], Tensor], **options: Any) -> Callable[[], Case]:
    """Return a function that makes a network with another forward pass."""

    def build() -> Case:
        torch.manual_seed(0)
        return Case(type("Changed", (Net,), {"around": forward})(), **options)

    return build


def around(wrap: Callable[[Net], nn.Module], **options: Any) -> Callable[[], Case]:
    """Return a function that makes a network and wraps it."""

    def build() -> Case:
        torch.manual_seed(0)
        return Case(wrap(Net()), **options)

    return build


class Squashed(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * weight.tanh()


class Quantizable(nn.Sequential):
    def __init__(self) -> None:
        layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
        super().__init__(quantization.QuantStub(), *layers, quantization.DeQuantStub())


def fake_quantized(*, has_sizes: bool) -> Case:
    torch.manual_seed(0)
    module = Quantizable().train()
    module.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(module, inplace=True)
    if has_sizes:
        module(INPUTS)
    return Case(module)


def low_rank(*, merged: bool) -> Case:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["first", "second"], modules_to_save=["head"])
    module = peft.get_peft_model(Net(), config)
    for name, weight in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight)
    if merged:
        module.merge_adapter()
    return Case(module)


def scaled_head(network: Net, images: Tensor) -> Tensor:
    weights = {name: 2 * weight for name, weight in network.head.named_parameters()}
    return torch.func.functional_call(network.head, weights, (network.features(images),))


def mapped_head(network: Net, images: Tensor) -> Tensor:
    weights = dict(network.head.named_parameters())
    call = torch.func.vmap(lambda row: torch.func.functional_call(network.head, weights, (row,)))
    return call(network.features(images))


def energy_gradient(network: Net, images: Tensor) -> Tensor:
    features = network.features(images)
    [gradient] = torch.autograd.grad((features**3).sum(), features, create_graph=True)
    return network.head(gradient)


def saved_in_half_precision(network: Net, images: Tensor) -> Tensor:
    def pack(tensor: Tensor) -> Tensor:
        return tensor.half() if tensor.is_floating_point() else tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return network.plain(images)


def saved_on_the_host(network: Net, images: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return network.plain(images)


def cast(device: str) -> Callable[[Net, Tensor], Tensor]:
    def forward(network: Net, images: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return network.plain(images).float()

    return forward


def partly(context: Callable[[], Any]) -> Callable[[Net, Tensor], Tensor]:
    def forward(network: Net, images: Tensor) -> Tensor:
        with context():
            features = network.first(images)
        return network.head(network.second(functional.relu(features.clone())))

    return forward


def toggled(network: Net, images: Tensor) -> Tensor:
    network.first.requires_grad_(False)
    output = network.plain(images)
    network.first.requires_grad_(True)
    return output


def made_a_leaf(network: Net, images: Tensor) -> Tensor:
    return network.plain(images.clone().requires_grad_())


def hooked_feature(network: Net, images: Tensor) -> Tensor:
    features = network.features(images)
    if features.requires_grad:
        features.register_hook(lambda gradient: 2 * gradient)
    return network.head(features)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, CLASSES, dtype=torch.complex64)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(torch.complex(images, 2 * images)).abs()


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = Net()

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


def fabric(network: Net) -> nn.Module:
    module: nn.Module = lightning.Fabric(accelerator="cpu", devices=1).setup(network)
    return module


def prepared(network: Net) -> nn.Module:
    accelerate.state.AcceleratorState._reset_state(True)
    try:
        module: nn.Module = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(network)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
    return module


ANSWERED: dict[str, Callable[[], Case]] = {
    "accelerate, prepared in bf16": around(prepared, loss=lambda o, t: functional.cross_entropy(o.float(), t)),
    "autocast within": within(cast("cpu")),
    "autocast of another device within": within(cast("cuda")),
    "average of weights": around(torch.optim.swa_utils.AveragedModel),
    "average of weights, timm": around(timm.utils.ModelEmaV3),
    "batch norm of one process": around(
        lambda m: nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(m, nn.BatchNorm1d(CLASSES)))
    ),
    "complex": around(lambda _: Complex()),
    "disabled for the compiler": changed(lambda m: setattr(m, "forward", torch.compiler.disable(m.forward))),
    "exported": around(lambda m: torch.export.export(m, (INPUTS,)).module()),
    "fake quantized": lambda: fake_quantized(has_sizes=True),
    "functional call": within(scaled_head),
    "functional map": within(mapped_head),
    "fx": around(torch.fx.symbolic_trace),
    "gradient within": within(energy_gradient),
    "hook, always called": changed(
        lambda m: m.second.register_forward_hook(lambda _, given, output: output + 1, always_call=True)
    ),
    "hook, backward": changed(
        lambda m: m.second.register_full_backward_hook(lambda _, of_inputs, __: (2 * of_inputs[0],))
    ),
    "hook, before the backward pass": changed(
        lambda m: m.second.register_full_backward_pre_hook(lambda _, of_outputs: (2 * of_outputs[0],))
    ),
    "hook, of inputs by name": changed(
        lambda m: m.second.register_forward_pre_hook(lambda _, given, named: ((given[0] + 1,), named), with_kwargs=True)
    ),
    "hook, of outputs": changed(lambda m: m.second.register_forward_hook(lambda _, given, output: 2 * output)),
    "hook, of the module": changed(lambda m: m.register_forward_hook(lambda _, given, output: 2 * output)),
    "hook, of a tensor": within(hooked_feature),
    "hook, on what is saved": within(saved_in_half_precision),
    "inference mode within": within(partly(torch.inference_mode)),
    "input made a leaf": within(made_a_leaf),
    "lightning": around(lambda _: Lit()),
    "lightning, fabric": around(fabric),
    "low rank": lambda: low_rank(merged=False),
    "low rank, merged": lambda: low_rank(merged=True),
    "no gradients within": within(partly(torch.no_grad)),
    "orthogonal": changed(lambda m: parametrizations.orthogonal(m.second, orthogonal_map="cayley")),
    "parametrized": changed(lambda m: parametrize.register_parametrization(m.second, "weight", Squashed())),
    "pruned": changed(lambda m: prune.l1_unstructured(m.second, "weight", 0.5), is_measured=False),
    "spectral norm": changed(lambda m: parametrizations.spectral_norm(m.second)),
    "spectral norm, old": changed(lambda m: nn.utils.spectral_norm(m.second), is_measured=False),
    "toggled": within(toggled),
    "weight norm": changed(lambda m: parametrizations.weight_norm(m.second)),
    "weight norm, old": changed(lambda m: nn.utils.weight_norm(m.second), is_measured=False),
}
"""What is answered: a step has the bits of plain PyTorch, and its memory."""


def observed() -> nn.Module:
    module = Quantizable().eval()
    module.qconfig = quantization.get_default_qconfig("x86")
    quantization.prepare(module, inplace=True)
    return module


def offloaded_layer(network: Net) -> None:
    network.second = offload_wrapper(network.second)


ON_HOST: dict[str, Callable[[], Case]] = {
    "accelerate, on the host": changed(lambda m: attach_align_device_hook(m, execution_device="cpu")),
    "copied to the host": within(lambda m, images: m.plain(images).cpu()),
    "saved on the host": within(saved_on_the_host),
    "offloading layer": changed(offloaded_layer),
}
"""What copies to the host on a GPU: on the CPU they are answered, a prediction refuses them."""
