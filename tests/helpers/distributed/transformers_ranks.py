"""A program for `torchrun ... -m tests.helpers.distributed.transformers_ranks OUTPUT NETWORKS`.

Networks of transformers whose weights are divided by its own functions, and by membench's styles: a step of each in
plain PyTorch, and of the whole network; every process writes its results.
"""

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from membench.core.libraries.distributed import join, joined
from membench.steps.parallel.tensor_parallel import plan_of, weights_divided

VOCABULARY, LENGTH, BATCH_SIZE = 64, 8, 2

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "use_cache": False,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {},
    "olmo2": {},
    "phi3": {},
    "granite_swa": {},
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 4},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4},
    "deepseek_v2": {**_EXPERTS, **_LATENT},
}
"""Options of the configurations, with small sizes."""


def network(name: str) -> nn.Module:
    """Return a network whose weights are the same for any number of processes."""
    torch.manual_seed(0)
    module: nn.Module = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**_SIZES | dict(NETWORKS[name])))
    if hasattr(module.config, "num_experts_per_tok"):
        module.set_experts_implementation("grouped_mm")
    return module.train()


def batch(device: str = "cpu") -> dict[str, Tensor]:
    """Return tokens, the same in all processes."""
    torch.manual_seed(1)
    tokens = torch.randint(3, VOCABULARY, (BATCH_SIZE, LENGTH))
    return {"input_ids": tokens.to(device), "labels": tokens.to(device)}


class Collectives(TorchDispatchMode):
    """Notes the kind and the bytes of each collective of this process: of what it gathers, and of what it reduces."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        namespace, name = function.namespace, function._opname
        if namespace in ("c10d", "_c10d_functional") and "wait" not in name and "wrap" not in name:
            kind = name.strip("_").replace("allreduce", "all_reduce").replace("_into_tensor", "")
            moved = tree_leaves(result if kind == "all_gather" else args)
            self.found.append((kind, sum(each.nbytes for each in moved if isinstance(each, Tensor))))
        return result


def step_of(module: nn.Module) -> dict[str, Any]:
    """Return the loss of a step, this process's part of each weight and of its gradient, and the collectives."""
    with Collectives() as collectives:
        loss = module(**batch()).loss
        loss.backward()
        gradients = {name: placed(weight) for name, weight in module.named_parameters()}
    return {
        "loss": loss.detach(),
        "weights": {name: local(weight.detach()) for name, weight in module.named_parameters()},
        "gradients": gradients,
        "collectives": sorted(collectives.found),
    }


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local().clone() if isinstance(tensor, DTensor) else tensor.clone()


def placed(weight: Tensor) -> Tensor:
    """Return this process's part of a weight's gradient."""
    gradient = weight.grad
    assert gradient is not None
    if isinstance(weight, DTensor) and isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=weight.placements)
    return local(gradient)


def of_transformers(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the module as transformers divides it."""
    plan, _, _ = module._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
    there = {
        *dict(module.named_parameters()),
        *dict(module.named_modules()),
    }  # without the weight of a tied head, which is tied again
    of_there = {path: style for path, style in plan.items() if path in there}
    divided: nn.Module = apply_tensor_parallelism(module, mesh, of_there)
    divided.tie_weights(recompute_mapping=False)
    return divided


def results(name: str, mesh: DeviceMesh) -> dict[str, Any]:
    module = network(name)
    own = deepcopy(module)
    with weights_divided(own, mesh, plan_of(own)):
        found = {"own": step_of(own)}
    found["transformers"] = step_of(of_transformers(deepcopy(module), mesh))
    found["whole"] = step_of(module)
    return found


def main(output: str, names: str) -> None:
    with join("cpu", timeout_s=600):
        mesh = init_device_mesh("cpu", (joined().count,), mesh_dim_names=("tp",))
        torch.save({name: results(name, mesh) for name in names.split(",")}, f"{output}{joined().rank}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
