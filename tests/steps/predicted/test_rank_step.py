"""Predictions of pipelines: many micro-batches follow from few, and what cannot be is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import membench
from membench.core import configuration
from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.core.step.pipeline import Pipeline, PipelineSchedule
from membench.core.step.workload import Workload
from membench.models.checkpointing import Checkpointing, with_checkpointing
from membench.models.llama import TokenLoss
from membench.steps.parallel.ranks import Ranks, ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.prediction import Prediction
from membench.steps.predicted.rank_step import equal_part
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch
from tests.helpers.networks.llama import small_llama

WIDTH = 512


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.linear(inputs))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(4)), nn.Linear(WIDTH, 10))


class Whole(Pipeline):
    """A pipeline all of whose micro-batches are simulated."""

    shorter = None


def predicted(ranks: Ranks, pipeline: Pipeline, module: nn.Module) -> Prediction:
    batch = (torch.empty(4096, WIDTH, device="meta"),), (torch.empty(4096, dtype=torch.long, device="meta"),)
    workload = Workload("blocks", module, nn.CrossEntropyLoss(), *batch)
    predictor = Predictor(workload, StepRequest(PyTorch()), ranks=replace(ranks, pipeline=pipeline))
    return predictor.on(configuration.load("device", "h100"))


@pytest.mark.parametrize("schedule", [order for order in PipelineSchedule if order is not PipelineSchedule.GPIPE])
def test_a_long_step_follows_from_two_short_ones(schedule: PipelineSchedule) -> None:
    with torch.device("meta"):
        module = network()
    cluster = replace(configuration.load("cluster", "dgx_h100"), devices_per_host=2)
    ranks = ranks_of(module, cluster, parallel={"pp": 2}, accumulate=16, pipeline=schedule, wrapped=["Block"])
    joined = ranks.pipeline
    assert joined is not None
    assert joined.shorter is not None
    fast = predicted(ranks, joined, module)
    slow = predicted(ranks, Whole(*(getattr(joined, name) for name in joined.__dataclass_fields__)), module)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=0.003)
    assert fast.utilization == pytest.approx(slow.utilization, rel=0.003)
    assert (
        (fast.batch_size, fast.allocated_bytes)
        == (slow.batch_size, slow.allocated_bytes)
        == (16 * 4096, fast.allocated_bytes)
    )
    assert fast.reserved_bytes == pytest.approx(slow.reserved_bytes, rel=0.1)  # in pieces of 20 MiB
    assert len(fast.stages) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reshard_after_forward": True, "parallel": {"pp": 2, "fsdp": 4}},
            "keep gathered weights for all micro-batches; leave reshard_after_forward out",
        ),
        ({"pipeline": "1f1"}, "pipeline '1f1' is not known; did you mean '1F1B'"),
        ({"stages": 3, "pipeline": "Interleaved1F1B"}, "3 stages cannot be divided equally over 2 ranks"),
        ({"parallel": {"xp": 8}}, "no axis xp of parallel.*pp"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with torch.device("meta"):
        module, batch = network(), (torch.empty(8, WIDTH), torch.empty(8, dtype=torch.long))
    described = {"parallel": {"pp": 2, "dp": 4}, "wrapped": ["Block"], "accumulate": 4} | options
    with pytest.raises(MembenchError, match=message):
        membench.predict(module, nn.CrossEntropyLoss(), batch, cluster="dgx_h100", **described)  # type: ignore[arg-type]


@pytest.mark.parametrize("parallel", [None, {"dp": 8}, {"pp": 2, "dp": 4}], ids=str)
def test_micro_batches_are_not_divided_again(parallel: dict[str, int] | None) -> None:
    """By moDNN, which divides the batch of a step without them."""
    with torch.device("meta"):
        module, batch = network(), (torch.empty(8, WIDTH), torch.empty(8, dtype=torch.long))
    where: dict[str, Any] = {"device": "h100"} if parallel is None else {"cluster": "dgx_h100", "parallel": parallel}

    def predicted(strategy: str) -> membench.Prediction:
        loss = nn.CrossEntropyLoss()
        return membench.predict(module, loss, batch, strategy=strategy, budget="1 GB", accumulate=4, **where)

    assert predicted("modnn").batch_size == predicted("eager").batch_size == 4 * 8


def test_updates_in_the_backward_pass_read_gradients_that_share_a_buffer() -> None:
    """Each frees nothing that another one still reads."""
    with torch.device("meta"):
        module, batch = network(), (torch.empty(8, WIDTH), torch.empty(8, dtype=torch.long))
    found = [
        membench.predict(
            module, nn.CrossEntropyLoss(), batch, cluster="dgx_h100", parallel={"pp": 2, "fsdp": 4}, wrapped=["Block"],
            accumulate=4, optimizer=membench.WeightUpdate(torch.optim.SGD, in_backward=in_backward),
        )
        for in_backward in (False, True)
    ]  # fmt: skip
    assert {stage.kind.several for each in found for stage in each.stages} == {True}
    behind, within = (max(stage.allocated_bytes for stage in each.stages) for each in found)
    assert within <= behind


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Checkpointing.FULL, Checkpointing.EVERY_SECOND])
def test_what_blocks_compute_again_belongs_to_their_stage(mode: Checkpointing) -> None:
    """Collectives of tensor parallelism that run between a block's modules included."""
    with torch.device("meta"):
        module = small_llama(layers=4, heads=8, groups=8, length=32)
        tokens = torch.zeros(1, 32, dtype=torch.long)
    options = {"cluster": "dgx_h100", "parallel": {"pp": 2, "tp": 4}, "accumulate": 2}
    plain, again = (
        membench.predict(each, TokenLoss(), (tokens, tokens), **options)  # type: ignore[arg-type]
        for each in (module, with_checkpointing(module, {"LlamaBlock"}, mode))
    )
    assert again.step_time_s > plain.step_time_s
    assert len(again.stages) == 2


@given(
    places=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
    memory_bytes=st.integers(1, 10_000),
)
def test_ranks_of_a_host_get_what_they_need_or_equal_parts(
    places: list[tuple[int, int, int]], memory_bytes: int
) -> None:
    needs, *hosts = zip(*places, strict=True)
    part = equal_part(hosts, needs, memory_bytes)

    def held(counts: tuple[int, ...], part_bytes: int) -> int:
        return sum(n * min(need, part_bytes) for n, need in zip(counts, needs, strict=True))

    assert all(held(counts, part) <= memory_bytes for counts in hosts)
    if part == memory_bytes:
        assert all(held(counts, part) <= memory_bytes for counts in hosts)
    else:
        assert any(held(counts, part + 1) > memory_bytes for counts in hosts)


def pipeline_in_a_host(memory_bytes: int, disk_bytes: int | None = None) -> Prediction:
    """Two ranks of each of two stages, of which the first has nearly all weights."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(3)), nn.Linear(WIDTH, 10))
        batch = torch.empty(8, WIDTH), torch.empty(8, dtype=torch.long)
    disk = (disk_bytes, 1e9, 1e9) if disk_bytes else ()
    return membench.predict(
        module,
        nn.CrossEntropyLoss(),
        batch,
        cluster=replace(configuration.load("cluster", "dgx_h100"), devices_per_host=4),
        parallel={"pp": 2, "dp": 2},
        wrapped=["Block"],
        accumulate=2,
        optimizer="adamw",
        strategy="zero_offload",
        machine=membench.Machine("small", memory_bytes, 1e11, *disk),
    )


def test_the_ranks_of_a_pipeline_share_a_host_by_what_each_needs() -> None:
    weights = 4 * (WIDTH * WIDTH + WIDTH) + 10 * WIDTH + 10
    free = pipeline_in_a_host(10**12)
    states_bytes = 2 * 3 * 4 * weights  # of two replicas; gradients are there in addition
    assert states_bytes < free.host_bytes < 2 * states_bytes
    assert {stage.host_bytes for stage in free.stages} == {free.host_bytes}
    # the fuller ranks have more than a quarter
    assert pipeline_in_a_host(free.host_bytes).host_bytes == free.host_bytes
    with pytest.raises(InfeasibleSchedule, match="which each of 4 ranks has of the host's"):
        pipeline_in_a_host(free.host_bytes - 1)
    assert pipeline_in_a_host(free.host_bytes - 1, 10**12).host_bytes < free.host_bytes
