"""Tensor parallelism, predicted: plans, what a rank holds, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

import membench
from membench.core.errors import MembenchError
from membench.models.hugging_face import network
from membench.models.llama import Llama, TokenLoss
from membench.steps.predicted.prediction import Prediction
from tests.helpers.networks.llama import small_llama

VOCABULARY, LENGTH = 1024, 256
WIDTH = 256
PLAN = {"rise": ColwiseParallel(), "fall": RowwiseParallel()}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.fall(torch.relu(self.rise(features)))
        return output


with torch.device("meta"):
    LLAMA = Llama(layers=2, width=WIDTH, heads=8, groups=8, inner=512, vocabulary=VOCABULARY, length=LENGTH)
    TOKENS = torch.zeros(2, LENGTH, dtype=torch.long)
    MLP, FEATURES = Mlp(), torch.zeros(64, WIDTH)


def predicted(module: nn.Module = LLAMA, **options: Any) -> Prediction:
    given = {"cluster": "dgx_h100", "precision": "bf16", "optimizer": "adamw", **options}
    return membench.predict(module, TokenLoss(), (TOKENS, TOKENS), **given)


def predicted_mlp(**options: Any) -> Prediction:
    given = {"cluster": "dgx_h100", "parallel": {"tp": 8}, **options}
    return membench.predict(MLP, nn.functional.mse_loss, (FEATURES, FEATURES), **given)


def buffers_bytes(module: nn.Module) -> int:
    return sum(buffer.nbytes for buffer in module.buffers())


@pytest.mark.slow
def test_ranks_divide_weights_and_states_and_wait_for_collectives() -> None:
    one, eight = predicted(cluster=None, device="h100"), predicted(parallel={"tp": 8})
    both = predicted(parallel={"fsdp": 2, "tp": 4})
    norms_bytes, table_bytes = 5 * WIDTH * torch.bfloat16.itemsize, buffers_bytes(LLAMA)
    divided_bytes = (one.parts_bytes["weights"] - norms_bytes - table_bytes) / 8
    # shards have the module's single precision, and fsdp divides norms too
    for prediction, factor, own_norms_bytes in ((eight, 1, norms_bytes), (both, 2, norms_bytes)):
        assert prediction.parts_bytes["weights"] == factor * divided_bytes + own_norms_bytes + table_bytes
        assert 0 < prediction.exposed_communication_s < prediction.step_time_s
        assert prediction.allocated_bytes < one.allocated_bytes
    assert eight.parts_bytes["optimizer state"] < one.parts_bytes["optimizer state"] / 7


@pytest.mark.exhaustive
def test_every_strategy_of_one_rank_schedules_a_divided_step() -> None:
    plain = predicted(parallel={"tp": 2, "dp": 4})
    for strategy in ("eager", "joint", "layrub_hybrid"):
        assert predicted(parallel={"tp": 2, "dp": 4}, strategy=strategy).allocated_bytes <= plain.allocated_bytes


def test_a_network_of_transformers_has_a_plan_and_tied_weights_stay_tied() -> None:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    with torch.device("meta"):
        module = network("llama", vocab_size=VOCABULARY, tie_word_embeddings=True, **sizes)
    batch = {"input_ids": TOKENS, "labels": TOKENS}, ()
    prediction = membench.predict(module, lambda output: output["loss"], batch, cluster="dgx_h100", parallel={"tp": 8})
    norms_bytes = sum(weight.nbytes for weight in module.parameters() if weight.dim() == 1)
    divided_bytes = sum(weight.nbytes for weight in module.parameters()) - norms_bytes
    assert prediction.parts_bytes["weights"] == divided_bytes / 8 + norms_bytes + buffers_bytes(module)


@pytest.fixture
def group() -> Iterator[None]:
    """The first of two ranks, of which the other does not exist."""
    dist.init_process_group("fake", rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_module_that_is_divided_is_captured_as_it_is() -> None:
    with torch.device("meta"):
        module = small_llama(layers=1, heads=2, groups=2, length=LENGTH)
    with pytest.raises(MembenchError, match="this process has joined a process group"):
        predicted(module, parallel={"dp": 4, "tp": 2})
    mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
    parallelize_module(module, mesh, Llama.tensor_parallel_plan(), src_data_rank=None)
    with loss_parallel():
        prediction = predicted(module, parallel={"dp": 4, "tp": 2})
    assert prediction.exposed_communication_s > 0
    divided = 64 * 64 * (2 + 4 + 3)
    weights_bytes = (divided / 2 + 3 * 64) * torch.bfloat16.itemsize
    assert prediction.parts_bytes["weights"] == weights_bytes + buffers_bytes(module)
    with pytest.raises(MembenchError, match=r"needs init_device_mesh\('cuda', \(4,\)"):
        predicted(module, parallel={"dp": 2, "tp": 4})
    with pytest.raises(MembenchError, match="is divided over them; predict it with .*cluster="), loss_parallel():
        predicted(module, cluster=None, device="h100")
    with pytest.raises(MembenchError, match="leave optimizer out, and step it after"):
        membench.compile(module, TokenLoss(), (TOKENS, TOKENS), optimizer="sgd")


def test_plans_that_do_not_fit_are_refused() -> None:
    assert predicted_mlp(tensor_parallel=PLAN).fits
    for options, message in (
        ({}, r"Mlp has no plan of its own .* pass tensor_parallel=\{"),
        ({"tensor_parallel": {"rise.gone": ColwiseParallel()}}, "names 'gone', and the module has no such"),
        ({"tensor_parallel": {"": ColwiseParallel()}}, "does not fit the module: ColwiseParallel"),
        ({"tensor_parallel": PLAN, "parallel": {"dp": 8}}, "is a plan for the ranks of an axis 'tp'"),
        ({"tensor_parallel": PLAN, "parallel": {"sp": 8}}, "there is no axis sp .*tp .tensor parallelism"),
    ):
        with pytest.raises(MembenchError, match=message):
            predicted_mlp(**options)
