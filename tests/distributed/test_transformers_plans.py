"""Networks divided by transformers' plans in two processes: as transformers' own, and as the whole."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from membench.core import configuration
from membench.core.step.workload import Workload
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch
from tests.helpers.distributed.launch import run_processes
from tests.helpers.distributed.transformers_ranks import NETWORKS, batch, network

ROUNDING = {"rtol": 1e-4, "atol": 1e-6}
"""Between sums in another order."""

HOST_OF_TWO = replace(configuration.load("cluster", "dgx_h100"), devices_per_host=2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each of two processes found, by network."""
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    folder = tmp_path_factory.mktemp("ranks")
    names = ",".join(name for name in NETWORKS if name in chosen)
    run_processes("tests.helpers.distributed.transformers_ranks", str(folder / "rank"), names)
    return [torch.load(folder / f"rank{rank}") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_of_transformers_divides_as_transformers_and_computes_as_the_whole_network(
    ranks: list[dict[str, Any]], name: str
) -> None:
    of_ranks = [found[name] for found in ranks]
    for found in of_ranks:
        own, theirs, whole = found["own"], found["transformers"], found["whole"]
        torch.testing.assert_close(own["loss"], whole["loss"], **ROUNDING)
        assert own["collectives"] == theirs["collectives"]
        for weight, part in own["weights"].items():
            assert torch.equal(part, theirs["weights"][weight]), weight
            torch.testing.assert_close(own["gradients"][weight], theirs["gradients"][weight], **ROUNDING, msg=weight)
    first, second = (found["own"]["gradients"] for found in of_ranks)
    for weight, gradient in of_ranks[0]["whole"]["gradients"].items():
        made = joined_parts(weight, first[weight], second[weight], gradient)
        torch.testing.assert_close(made, gradient, **ROUNDING, msg=weight)
    predicted, parts_bytes = prediction(name)
    assert predicted == of_ranks[0]["own"]["collectives"]
    assert parts_bytes == sum(part.nbytes for part in of_ranks[0]["own"]["weights"].values())


def joined_parts(name: str, first: Tensor, second: Tensor, whole: Tensor) -> Tensor:
    """Return a tensor of its two parts; those of a packed one are its halves' parts."""
    divided = [at for at in range(whole.dim()) if first.shape[at] != whole.shape[at]]
    if not divided:
        return first
    (along,) = divided
    if whole.dim() == 3 and name.endswith("gate_up_proj"):  # of experts
        halves = zip(first.chunk(2, along), second.chunk(2, along), strict=True)
        return torch.cat([part for half in halves for part in half], along)
    return torch.cat([first, second], along)


def prediction(name: str) -> tuple[list[tuple[str, int]], int]:
    """Return the collectives and the bytes of weights of a predicted rank."""
    with torch.device("meta"):
        module = network(name)
    workload = Workload(name, module, lambda output: output.loss, batch("meta"), ())
    graph = Predictor(
        workload, StepRequest(PyTorch()), ranks=ranks_of(module, HOST_OF_TWO, parallel={"tp": 2})
    ).graph_on()
    found = [task.collective for task in graph.tasks if task.collective]
    weights = sum(block.size_bytes for block in graph.blocks if block.role.name == "WEIGHT")
    return sorted((each.kind.name.lower(), each.size_bytes) for each in found), weights
