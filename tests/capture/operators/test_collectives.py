"""A divided module's capture: what one rank computes, and the collectives that it takes part in."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import loss_parallel

import membench
from membench.capture.capture import capture
from membench.core.errors import UnsupportedModel
from membench.core.graph.collective import CollectiveKind
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.step.workload import Workload
from membench.models.llama import TokenLoss
from tests.helpers.distributed.tensor_parallel import NETWORKS, batch, parallel

RANKS = 2


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """The first of two ranks, of which the other does not exist."""
    dist.init_process_group("fake", rank=0, world_size=RANKS)
    with loss_parallel():
        yield init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def captured(name: str, mesh: DeviceMesh | None = None) -> TaskGraph:
    module = parallel(name, mesh) if mesh else NETWORKS[name][0]()
    inputs, targets = batch()
    return capture(Workload(name, module, TokenLoss(), (inputs,), (targets,))).graph


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_has_the_collectives_that_torch_counts(name: str, mesh: DeviceMesh) -> None:
    module, (inputs, targets) = parallel(name, mesh), batch()
    with CommDebugMode() as communication:
        TokenLoss()(module(inputs), targets).backward()
    counted = {str(operator): count for operator, count in communication.get_comm_counts().items() if count}
    collectives = [task for task in captured(name, mesh).tasks if task.collective]
    found = Counter(task.call.operator.lstrip("_").rpartition(".")[0] for task in collectives if task.call)
    assert found == counted
    assert {task.collective.axis for task in collectives if task.collective} == {"tp"}
    assert not any(task.operations or task.moved_bytes for task in collectives)


@pytest.mark.parametrize("name", NETWORKS)
def test_ranks_share_the_operations_of_products(name: str, mesh: DeviceMesh) -> None:
    ours, whole = (
        sum(task.operations for task in graph.tasks if task.kind is Kind.LINEAR)
        for graph in (captured(name, mesh), captured(name))
    )
    assert ours * RANKS == whole


def test_a_collective_has_the_size_of_the_whole_tensor_in_one_rank(mesh: DeviceMesh) -> None:
    width, tokens = 16, batch()[0].numel()
    tasks = captured("llama", mesh).tasks
    sizes = {
        kind: {task.collective.size_bytes for task in tasks if task.collective and task.collective.kind is kind}
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    }
    assert sizes == {kind: {tokens * width * torch.float32.itemsize} for kind in sizes}


def test_a_divided_module_that_is_wrapped_is_refused(mesh: DeviceMesh) -> None:
    with pytest.raises(UnsupportedModel, match="a DTensor is trained.* pass the loss to membench.compile"):
        membench.wrap(parallel("mlp", mesh))(batch()[0])
