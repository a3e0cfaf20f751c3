"""Arguments of a call without their memory, so that a step does not keep its example."""

from typing import Any

import torch
from torch import Tensor, nn

from membench.core.libraries.torch_internals import storage_address, tree_map
from membench.core.step.opened import closed, opened
from membench.core.step.stored import stored_buffers, stored_weights


def without_memory(arguments: Any, module: nn.Module) -> Any:
    """Return arguments whose tensors have no memory, but share it as the given ones do; objects are copied.

    Tensors in memory of the module stay there, without their history.
    """
    of_module = {
        storage_address(tensor.untyped_storage())
        for tensor in (*stored_weights(module).values(), *stored_buffers(module).values())
    }
    weights = set(map(id, module.parameters()))
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, Tensor] = {}

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return closed(opened(leaf))
        if id(leaf) not in made:
            made[id(leaf)] = leaf if id(leaf) in weights else of_tensor(leaf)
        return made[id(leaf)]

    def of_tensor(tensor: Tensor) -> Tensor:
        address = storage_address(tensor.untyped_storage())
        if address in of_module:
            return tensor.detach().requires_grad_(tensor.requires_grad)
        if address not in storages:
            size_bytes = tensor.untyped_storage().nbytes()
            storages[address] = torch.empty(size_bytes, dtype=torch.uint8, device="meta").untyped_storage()
        own = torch.empty(0, dtype=tensor.dtype, device="meta")
        own.set_(storages[address], tensor.storage_offset(), tensor.shape, tensor.stride())
        return own.requires_grad_(tensor.requires_grad)

    return tree_map(of_leaf, arguments)
