"""transformers' plans of tensor parallelism: what each rank has, against transformers itself, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES

import membench
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.models.hugging_face import OwnLoss, network
from membench.steps.parallel.tensor_parallel import plan_of, weights_divided
from membench.steps.parallel.transformers_plan import STYLES, plan_of_transformers
from membench.steps.predicted.prediction import Prediction
from tests.helpers.distributed.transformers_ranks import of_transformers

OF_EXPERT_PARALLELISM = {"grouped_gemm", "ep_router", "ep_dispatch_experts"}
"""Styles of plans of another kind."""

FOUR = replace(configuration.load("cluster", "dgx_h100"), devices_per_host=4)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
TOKENS = torch.zeros(2, 16, dtype=torch.long, device="meta")


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """That of the first of several ranks, of which the others do not exist."""
    dist.init_process_group("fake", rank=0, world_size=request.param)
    yield init_device_mesh("cpu", (request.param,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def on_meta(model_type: str, **options: Any) -> nn.Module:
    """Return a network of a type, of two layers if it has no parts with configurations of their own."""
    described = transformers.CONFIG_MAPPING[model_type]()
    if isinstance(getattr(described, "num_hidden_layers", None), int):
        options = {"num_hidden_layers": 2, **options}
    with torch.device("meta"):
        return network(model_type, **options)


def parts(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    locals_ = {
        name: weight.to_local() if isinstance(weight, DTensor) else weight for name, weight in module.named_parameters()
    }
    return {name: (weight.shape, weight.dtype) for name, weight in locals_.items()}


def families() -> Iterator[str]:
    """Yield transformers' types whose default options make a network with a head and a plan."""
    for model_type in transformers.CONFIG_MAPPING:
        try:
            if on_meta(model_type).tp_plan:
                yield model_type
        except Exception:  # options without a default, or another head
            continue


def test_the_table_has_every_style_of_the_transformers_that_is_installed() -> None:
    assert set(ALL_PARALLEL_STYLES) - OF_EXPERT_PARALLELISM <= STYLES.keys()


@pytest.mark.parametrize("mesh", [2], indirect=True)
@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text", "mixtral", "aria_text", "longcat_flash"])
def test_a_rank_has_the_parts_that_transformers_gives_it(model_type: str, mesh: DeviceMesh) -> None:
    check_parts(model_type, mesh)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", [2], indirect=True)
def test_a_rank_has_the_parts_of_transformers_in_every_family(mesh: DeviceMesh) -> None:
    found = list(families())
    assert len(found) > 100
    for model_type in found:
        check_parts(model_type, mesh)


def check_parts(model_type: str, mesh: DeviceMesh) -> None:
    own = on_meta(model_type)
    with weights_divided(own, mesh, plan_of(own)):
        assert parts(own) == parts(of_transformers(on_meta(model_type), mesh)), model_type


def predicted(module: nn.Module, **options: Any) -> Prediction:
    batch = {"input_ids": TOKENS, "labels": TOKENS}, ()
    return membench.predict(module, OwnLoss(), batch, cluster=FOUR, **options)


def small(model_type: str, **options: Any) -> nn.Module:
    with torch.device("meta"):
        return network(model_type, **SIZES | options)


def test_whole_weights_have_whole_states_and_are_in_shards_as_others() -> None:
    module = small("qwen3")
    sizes = {name: weight.nbytes for name, weight in module.named_parameters()}
    whole = sum(size for name, size in sizes.items() if "norm" in name)
    part = (sum(sizes.values()) - whole) / 2
    buffers = sum(buffer.nbytes for buffer in module.buffers())
    replicated = predicted(module, parallel={"dp": 2, "tp": 2}, optimizer="adamw")
    in_shards = predicted(module, parallel={"fsdp": 2, "tp": 2}, optimizer="adamw")
    for prediction, shards in ((replicated, 1), (in_shards, 2)):
        assert prediction.parts_bytes["weights"] == (part + whole) / shards + buffers
        assert prediction.parts_bytes["optimizer state"] == 2 * (part + whole) / shards


HEADS = "of model.layers.0.self_attn.k_proj are not divided evenly over the"


@pytest.mark.parametrize(
    ("model_type", "options", "ranks", "message"),
    [
        ("qwen3", {}, 4, f"the 2 heads {HEADS} 4 ranks; choose a divisor"),
        ("gemma", {"num_key_value_heads": 1}, 2, f"the 1 head {HEADS} 2 ranks"),
        ("lfm2", {"tie_word_embeddings": True}, 2, "divides lm_head.weight, and not model.embed_tokens.weight"),
        ("esmc", {"num_key_value_heads": 4}, 2, "EsmcForMaskedLM does not run on the parts .* each of 2 ranks"),
    ],
)
def test_a_network_that_a_plan_does_not_divide_is_refused(
    model_type: str, options: dict[str, Any], ranks: int, message: str
) -> None:
    with pytest.raises(MembenchError, match=message):
        predicted(small(model_type, **options), parallel={"dp": 4 // ranks, "tp": ranks})


def test_a_plan_with_an_unknown_style_is_refused() -> None:
    module = small("qwen3")
    with pytest.raises(MembenchError, match="has the style 'grouped_gemm', which is not one of colwise, "):
        plan_of_transformers(module, {"model.layers.*.mlp.up_proj": "grouped_gemm"})


def test_the_first_rank_has_the_largest_part_of_a_width_that_ranks_do_not_divide() -> None:
    module = small("llama", intermediate_size=50, vocab_size=65, num_key_value_heads=4)
    sizes = {name: weight.nbytes for name, weight in module.named_parameters()}
    parts_bytes = sum(size for name, size in sizes.items() if "norm" in name)
    parts_bytes += sum(size // 4 for name, size in sizes.items() if "self_attn" in name)
    parts_bytes += sum(size // 50 * 13 for name, size in sizes.items() if "mlp" in name)
    parts_bytes += sum(size // 65 * 17 for name, size in sizes.items() if "embed" in name or "lm_head" in name)
    buffers = sum(buffer.nbytes for buffer in module.buffers())
    assert predicted(module, parallel={"tp": 4}).parts_bytes["weights"] == parts_bytes + buffers
