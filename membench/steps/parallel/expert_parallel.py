"""Expert parallelism of a step that is predicted: each rank has some of the experts, to which tokens go and come back.

    tokens of a rank -> all-to-all -> experts of the rank, tokens of all ranks -> all-to-all -> weighted sums

Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", 2021, Section 3.2;
without a capacity of experts, as in torchtitan's ``ExpertParallel``: copies of tokens are sorted by expert before they
leave. They are taken to be spread evenly over the experts, as grouped products are priced: each rank sends as many to
each other one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.errors import MembenchError
from membench.core.libraries.torch_internals import all_to_all

AXIS = "ep"
"""Axis over whose ranks experts are divided, each with its own samples; other weights are in shards over it."""


def experts_in(module: nn.Module) -> dict[str, nn.Module]:
    """Return by path the modules whose weights all have one part for each of ``num_experts``, as transformers' have.

    Raises:
        MembenchError: there are none.
    """
    found = {
        name: each
        for name, each in module.named_modules()
        if isinstance(number := getattr(each, "num_experts", None), int)
        and (weights := list(each.parameters()))
        and all(weight.dim() and len(weight) == number for weight in weights)
        and any(weight.dim() == 3 for weight in weights)  # a router's are matrices
    }
    if not found:
        raise MembenchError(
            f"{type(module).__name__} has no module with an attribute num_experts and weights of one part for each; "
            f"leave {AXIS} out of parallel"
        )
    return found


@contextmanager
def experts_divided(module: nn.Module, mesh: Any) -> Iterator[None]:
    """Leave a rank's part of the experts in a module, and let a block run it.

    Args:
        module: whose modules of experts are called with tokens (tokens, width) and, for each of them, the numbers and
            the weights of its experts (tokens, experts of a token).
        mesh: torch's, of the axis alone.

    Raises:
        MembenchError: there are no experts, or they cannot be divided into equal parts.
    """
    for name, experts in experts_in(module).items():
        number, rest = divmod(len(next(experts.parameters())), mesh.size())
        if rest:
            raise MembenchError(
                f"the {experts.num_experts} experts of {name} are not divided evenly over the {mesh.size()} ranks of "
                f"{AXIS}; choose a divisor"
            )
        vars(experts)["num_experts"] = number
        for weight_name, weight in list(experts.named_parameters()):
            owner, _, attribute = weight_name.rpartition(".")
            part = nn.Parameter(weight[:number].clone(), weight.requires_grad)
            experts.get_submodule(owner).register_parameter(attribute, part)
        experts.forward = partial(_sent, experts.forward, number, mesh.get_group())
    yield


def _sent(
    forward: Callable[..., Tensor], number: int, group: Any, tokens: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """Send copies of tokens to their experts, `number` on each rank, and return weighted sums of what these make."""
    order = chosen.flatten().argsort(stable=True)
    source = order // chosen.shape[-1]
    received = all_to_all(tokens[source], group)
    local = chosen.flatten()[order] % number  # other ranks are taken to choose alike
    made = forward(received, local[:, None], torch.ones_like(received[:, :1]))
    weighted = all_to_all(made, group) * weights.flatten()[order, None].to(made.dtype)
    return torch.zeros_like(tokens).index_add(0, source, weighted)
