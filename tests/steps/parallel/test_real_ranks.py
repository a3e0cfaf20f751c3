"""Modules that torch's wrappers have divided, in one process: refusals, and that other modules have no ranks."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

import membench
from membench.core.errors import MembenchError, UnsupportedModel
from membench.steps.parallel.real_ranks import divided, real_ranks

LOSS = nn.functional.cross_entropy
BATCH = torch.randn(4, 6), torch.arange(4)


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def test_other_modules_have_no_ranks() -> None:
    module = network()
    assert real_ranks(module) == (module, None)


@pytest.mark.parametrize("wrapper", [fully_shard, DistributedDataParallel])
def test_one_process_runs_the_step_of_the_module(wrapper: Any) -> None:
    plain = network()
    plain_loss = LOSS(plain(BATCH[0]), BATCH[1])
    plain_loss.backward()
    wrapped = wrapper(network())
    step = membench.compile(wrapped, LOSS, BATCH)
    assert torch.equal(step(*BATCH), plain_loss)
    for mine, weight in zip(wrapped.parameters(), plain.parameters(), strict=True):
        gradient = mine.grad
        assert gradient is not None and not gradient.requires_grad
        assert torch.equal(getattr(gradient, "_local_tensor", gradient), weight.grad)
    step.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "simulated", "device": "k40m"}, "under fully_shard runs with backend='cpu'"),
        ({"exchange": "as_made"}, "exchange='as_made' is not for a module under fully_shard"),
        ({"precision": "bf16"}, "precision='bf16' is not for a module under fully_shard"),
        ({"shapes": "any"}, "shapes='any' is not for a module under fully_shard"),
        ({"micro_batch": 2}, "under fully_shard runs its whole batch; call it for each micro-batch"),
    ],
)
def test_options_that_do_not_go_together_with_it_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        membench.compile(fully_shard(network()), LOSS, BATCH, **options)


def test_what_fully_shard_would_compute_otherwise_is_refused() -> None:
    half = fully_shard(network(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(UnsupportedModel, match="param_dtype of a MixedPrecisionPolicy"):
        membench.compile(half, LOSS, BATCH)
    other = fully_shard(network(), shard_placement_fn=lambda weight: Shard(weight.dim() - 1))
    with pytest.raises(UnsupportedModel, match="divide weights along their first dimension"):
        membench.compile(other, LOSS, BATCH)
    part = network()
    fully_shard(part[0])
    with pytest.raises(UnsupportedModel, match="fully_shard has not divided it"):
        membench.compile(part, LOSS, BATCH)
    with pytest.raises(UnsupportedModel, match="compile the step with its loss"):
        membench.wrap(fully_shard(network()))


def test_processes_must_be_as_many_as_the_axes_have() -> None:
    with pytest.raises(MembenchError, match=r"parallel=\{'fsdp': 2\} is not for the 1 processes"):
        divided(network(), {"fsdp": 2})
