"""What programs put around the network of `wrappers`, and into it, that is refused."""

import tempfile
from collections.abc import Callable
from typing import Any

import accelerate
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers.networks.wrappers import INPUTS, Case, Net, Squashed, around, changed, fake_quantized, within


def compiled_activation(network: Net, images: Tensor) -> Tensor:
    return network.head(torch.compile(Squashed.forward, backend="eager")(network.head, network.features(images)))


class Doubled(Tensor):
    """A tensor whose class changes what a function does."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * output if func is functional.linear else output


def replaced_weight(network: Net, images: Tensor) -> Tensor:
    network.first.weight = nn.Parameter(0.9 * network.first.weight.detach())
    return network.plain(images)


def replaced_memory(network: Net, images: Tensor) -> Tensor:
    network.first.weight.data = 0.9 * network.first.weight.data
    return network.plain(images)


def unfrozen(network: Net, images: Tensor) -> Tensor:
    network.first.requires_grad_(True)
    return network.plain(images)


def unfreezing() -> Case:
    case = within(unfrozen)()
    case.module.first.requires_grad_(False)
    return case


_COMPILED = "was given to torch.compile, .* pass the module as it was before"
_OFFLOADED = "accelerate loads its weights when it is called; pass the module as it was before it was offloaded"

REFUSED: dict[str, tuple[Callable[[], Case], str]] = {
    "accelerate, offloaded": (around(lambda m: accelerate.cpu_offload(m, torch.device("cpu"))), _OFFLOADED),
    "accelerate, on the disk": (
        around(lambda m: accelerate.disk_offload(m, tempfile.mkdtemp(), torch.device("cpu"))),
        _OFFLOADED,
    ),
    "class of inputs": (
        around(lambda m: m, inputs=INPUTS.as_subclass(Doubled)),
        r"is a Doubled, whose class changes what torch's functions do; pass a plain tensor",
    ),
    "class of a weight": (
        changed(lambda m: setattr(m.second, "weight", nn.Parameter(m.second.weight.data.as_subclass(Doubled)))),
        "'second.weight' .* its class, Doubled, changes what torch's functions do; store a plain tensor",
    ),
    "compiled": (around(lambda m: torch.compile(m, backend="eager")), _COMPILED),
    "compiled forward": (
        changed(lambda m: setattr(m, "forward", torch.compile(m.forward, backend="eager"))),
        f"the module is not supported: Net {_COMPILED}",
    ),
    "compiled function": (within(compiled_activation), f"Squashed.forward {_COMPILED}"),
    "compiled in place": (changed(lambda m: m.compile(backend="eager")), f"the module .* Net {_COMPILED}"),
    "compiled layer": (
        changed(lambda m: setattr(m, "second", torch.compile(m.second, backend="eager"))),
        f"layer 'second.*' is not supported: Linear {_COMPILED}",
    ),
    "compiled layer in place": (
        changed(lambda m: m.second.compile(backend="eager")),
        f"layer 'second' is not supported: Linear {_COMPILED}",
    ),
    "data parallel": (around(nn.DataParallel), "distributes its batch over devices itself; pass the module inside"),
    "data parallel layer": (
        changed(lambda m: setattr(m, "second", nn.DataParallel(m.second))),
        "'second' .* distributes its batch over devices itself; pass the module inside",
    ),
    "dtypes that differ": (
        around(lambda m: m.double()),
        "'first' .* float64 and float32 in one product, which PyTorch refuses; convert the module or the batch",
    ),
    "fake quantized, without sizes": (
        lambda: fake_quantized(has_sizes=False),
        "it gives a buffer its size when it first runs; call the module once",
    ),
    "lazy": (
        around(lambda m: nn.Sequential(nn.LazyLinear(8), m)),
        "'0.weight' .* its shape is not known yet; call the module once",
    ),
    "replaced memory": (within(replaced_memory), "'first.weight' .* gives it other memory, .* write to it in place"),
    "replaced weight": (within(replaced_weight), "'first.weight' .* it replaces a weight; update the weight in place"),
    "script": (around(lambda m: torch.jit.trace(m, INPUTS)), "TorchScript does not expose the running layer; pass the"),
    "sparse weight": (
        changed(lambda m: setattr(m.second, "weight", nn.Parameter(m.second.weight.data.to_sparse_csr()))),
        "'second.weight' .* it is a sparse or nested tensor; store a dense one",
    ),
    "unfrozen": (unfreezing, "'first.(weight|bias)' .* the module unfreezes it when it is called; unfreeze it before"),
}
"""What is refused, with the sentence that is expected."""
