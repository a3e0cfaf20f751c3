"""The graph of a deep network from those of shallow copies is the one that is captured of it as a whole."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from membench.capture import deepened
from membench.capture.capture import Captures
from membench.capture.depth import Depth
from membench.capture.trace import ANY_GPU
from membench.core.task_graph import TaskGraph
from membench.models.llama import Llama, TokenLoss
from membench.steps.arguments import workload_of
from membench.steps.parallel.division import Division


class Treating(nn.Module):
    """Blocks of which one may be treated in another way."""

    def __init__(
        self,
        blocks: int,
        other: int | None = None,
        wide: int | None = None,
        again: bool = False,
        skips: int | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(blocks))
        self.other, self.again, self.skips = other, again, skips
        for index, block in enumerate(self.blocks):
            block.index = index
        if wide is not None:
            self.blocks[wide][1].p = 0.2

    def forward(self, features: Tensor) -> Tensor:
        earlier = [features]
        for index, block in enumerate(self.blocks):
            earlier.append(features)
            features = earlier[-3] if index == self.skips else features
            features = checkpoint(block, features, use_reentrant=False) if self.again else block(features)
            features = features.relu() if index == self.other else features
        return features


def llama(blocks: int, checkpointing: str) -> Captures:
    sizes: dict[str, Any] = {
        "width": 64,
        "heads": 4,
        "groups": 2,
        "inner": 96,
        "vocabulary": 50,
        "length": 16,
    }
    with torch.device("meta"):
        module, tokens = (
            Llama(layers=blocks, checkpointing=checkpointing, **sizes),
            torch.randint(50, (1, 16)),
        )
    return captures(module, TokenLoss(), (tokens, tokens), tensor=2 if checkpointing == "full" else 1)


def treating(**options: Any) -> Captures:
    with torch.device("meta"):
        module, batch = Treating(10, **options), (torch.empty(2, 8), torch.empty(2, 8))
    return captures(module, nn.MSELoss(), batch)


def captures(module: nn.Module, loss: Any, batch: Any, tensor: int = 1) -> Captures:
    prepared: Any = Division(tensor).divided if tensor > 1 else nullcontext
    return Captures(workload_of(module, loss, batch), ANY_GPU, uses_values=True, prepared=prepared)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let networks of ten blocks be deep, and return the numbers of tasks of what is captured."""
    tasks: list[int] = []
    graph_at = Captures.graph_at

    def noting(self: Captures, size: int) -> TaskGraph:
        graph = graph_at(self, size)
        tasks.append(len(graph.tasks))
        return graph

    monkeypatch.setattr(deepened, "LEAST_DEPTH", 8)
    monkeypatch.setattr(Captures, "graph_at", noting)
    return tasks


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "checkpointing"), [(11, "full"), (10, "layer"), (10, "op")])
def test_the_graph_from_shallow_copies_is_the_captured_one(
    captured: list[int], blocks: int, checkpointing: str
) -> None:
    graph = deepened.graph_at(llama(blocks, checkpointing), 1)
    assert len(captured) == 2
    assert max(captured) < len(graph.tasks)
    assert graph == llama(blocks, checkpointing).graph_at(1)


def test_so_is_that_of_regions_with_states_of_the_random_generator(captured: list[int]) -> None:
    graph = deepened.graph_at(treating(again=True), 2)
    assert len(captured) == 2 and graph == treating(again=True).graph_at(2)


@pytest.mark.parametrize("block", [4, 5])
def test_a_network_that_treats_one_block_in_another_way_is_captured_as_a_whole(
    captured: list[int], block: int
) -> None:
    graph = deepened.graph_at(treating(other=block), 2)
    assert captured[-1] == len(graph.tasks)
    assert sum(task.name.endswith(":relu") for task in graph.tasks) == 1


def test_a_block_that_reads_what_an_earlier_one_has_made_is_seen(captured: list[int]) -> None:
    """It runs the same operators, and the copies have no such block."""
    graph = deepened.graph_at(treating(skips=8), 2)
    assert captured[-1] == len(graph.tasks) and graph == treating(skips=8).graph_at(2)


def test_blocks_whose_attributes_differ_are_not_alike() -> None:
    assert Depth.greatest(treating().workload.module) == Depth("blocks", 10)
    assert Depth.greatest(treating(wide=5).workload.module) is None


def test_a_plan_that_divides_one_block_in_another_way_is_seen(captured: list[int]) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    of = treating().workload
    plan: dict[str, Any] = {f"blocks.{number}.0": ColwiseParallel() for number in range(10) if number != 5}
    uneven = Captures(
        of, ANY_GPU, prepared=Division(2, plan=plan | {"blocks.5.0": RowwiseParallel()}).divided
    )
    even = Captures(of, ANY_GPU, prepared=Division(2, plan={"blocks.*.0": ColwiseParallel()}).divided)
    for captures, depth in ((even, Depth("blocks", 10)), (uneven, None)):
        with captures.prepared(2) as divided:
            assert Depth.greatest(divided.module) == depth
    assert deepened._deep(uneven, 2, Depth("blocks", 10)) is None and not captured
