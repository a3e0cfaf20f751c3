"""Meshes that are searched: which axes they have, and where sequences may be divided."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.advice.cluster.meshes import Meshes
from membench.advice.cluster.rank_options import RankOptions
from membench.core import configuration
from membench.models.hugging_face import network
from membench.models.llama import TokenLoss
from membench.steps.arguments import workload_of
from tests.helpers.networks.llama import small_llama

HOST = replace(configuration.load("cluster", "dgx_h100"), hosts=1)


class Experts(nn.Module):
    """Experts as transformers' networks have them, which nothing calls."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.num_experts = number
        self.weight = nn.Parameter(torch.empty(number, 4, 4, device="meta"))


def meshes(module: nn.Module, batch: Tensor, **options: Any) -> Meshes:
    work = workload_of(module, TokenLoss(), (batch, batch), precision="bf16")
    return Meshes(work, RankOptions(HOST, **options), blocks=2)


def llama() -> nn.Module:
    with torch.device("meta"):
        return small_llama()


def tokens(length: int = 64) -> Tensor:
    return torch.zeros(1, length, dtype=torch.long, device="meta")


def test_without_experts_none_are_divided() -> None:
    assert {each.experts for each in meshes(llama(), tokens()).divisions} == {1}


@pytest.mark.parametrize(("numbers", "divided"), [((4,), {1, 2, 4}), ((4, 6), {1, 2}), ((3,), {1})])
def test_experts_are_divided_evenly_and_products_not_with_them(numbers: tuple[int, ...], divided: set[int]) -> None:
    module = llama()
    for number in numbers:
        module.add_module(f"experts{number}", Experts(number))
    found = meshes(module, tokens())
    assert {each.experts for each in found.divisions} == divided
    assert {each.tensor for each in found.divisions if each.experts > 1} <= {1}
    assert {each.tensor for each in found.divisions} == {1, 2, 4}


@pytest.mark.parametrize("model_type", ["qwen3", "olmo2"])
def test_networks_of_transformers_are_divided_by_their_plans(model_type: str) -> None:
    with torch.device("meta"):
        module = network(model_type, num_hidden_layers=2)
    found = meshes(module, tokens())
    assert {each.tensor for each in found.divisions} == {1, 2, 4}
    assert not found.refused


@pytest.mark.parametrize(("length", "ranks"), [(64, 8), (24, 4), (12, 2), (13, 1)])
def test_rings_are_as_long_as_sequences_can_be_divided(length: int, ranks: int) -> None:
    found = meshes(llama(), tokens(length))
    axes = (("pp", 1), ("dp", 1), ("fsdp", 8), ("tp", 1))
    while (longer := found.with_longer_ring(axes)) is not None:
        axes = longer
    assert dict(axes).get("cp", 1) == ranks and dict(axes)["fsdp"] == 8 // ranks


def test_other_samples_meshes_and_experts_have_no_rings() -> None:
    axes = (("dp", 1), ("fsdp", 8))
    pixels = torch.zeros(1, 64, 8, device="meta")
    assert meshes(llama(), pixels).with_longer_ring(axes) is None
    assert meshes(llama(), tokens(), parallel={"fsdp": 8}).with_longer_ring(axes) is None
    assert meshes(llama(), tokens()).with_longer_ring((("fsdp", 4), ("ep", 2))) is None
