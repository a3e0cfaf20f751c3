"""Predictions of pipelines: many micro-batches follow from few, and what cannot be is refused."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.pipeline import Pipeline, PipelineSchedule
from membench.core.workload import Workload
from membench.models.checkpointing import Checkpointing, with_checkpointing
from membench.models.llama import Llama, TokenLoss
from membench.steps.parallel.ranks import Ranks, ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.prediction import Prediction
from membench.strategies.pytorch import PyTorch

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
    predictor = Predictor(workload, PyTorch(), ranks=replace(ranks, pipeline=pipeline))
    return predictor.on(configuration.load("device", "h100"))


@pytest.mark.parametrize(
    "schedule", [order for order in PipelineSchedule if order is not PipelineSchedule.GPIPE]
)
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
        ({"pipeline": "1f1b"}, "pipeline is one of GPipe, 1F1B.*did you mean '1F1B'"),
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


def test_updates_in_the_backward_pass_read_gradients_that_share_a_buffer() -> None:
    """Each frees nothing that another one still reads."""
    with torch.device("meta"):
        module, batch = network(), (torch.empty(8, WIDTH), torch.empty(8, dtype=torch.long))
    found = [
        membench.predict(
            module, nn.CrossEntropyLoss(), batch, cluster="dgx_h100", parallel={"pp": 2, "fsdp": 4}, wrapped=["Block"], accumulate=4,
            optimizer=membench.WeightUpdate(torch.optim.SGD, in_backward=in_backward),
        )
        for in_backward in (False, True)
    ]  # fmt: skip
    behind, within = (max(stage.allocated_bytes for stage in each.stages) for each in found)
    assert within <= behind


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Checkpointing.FULL, Checkpointing.EVERY_SECOND])
def test_what_blocks_compute_again_belongs_to_their_stage(mode: Checkpointing) -> None:
    """Collectives of tensor parallelism that run between a block's modules included."""
    with torch.device("meta"):
        module = Llama(
            layers=4, width=64, heads=8, groups=8, inner=64, vocabulary=100, length=32
        )  # fmt: skip
        tokens = torch.zeros(1, 32, dtype=torch.long)
    options = {"cluster": "dgx_h100", "parallel": {"pp": 2, "tp": 4}, "accumulate": 2}
    plain, again = (
        membench.predict(each, TokenLoss(), (tokens, tokens), **options)  # type: ignore[arg-type]
        for each in (module, with_checkpointing(module, {"LlamaBlock"}, mode))
    )
    assert again.step_time_s > plain.step_time_s
    assert len(again.stages) == 2
