"""Expert parallelism, predicted: what a rank computes and holds, and what is refused."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GptOssConfig, MixtralConfig

import membench
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.collective import CollectiveKind
from membench.core.graph.task_graph import Phase, TaskGraph
from membench.core.hardware.cluster import Cluster
from membench.core.step.workload import Workload
from membench.steps.parallel.expert_parallel import experts_divided, experts_in
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.prediction import Prediction
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

LAYERS, EXPERTS, CHOSEN, WIDTH, LENGTH = 2, 8, 2, 64, 128
HOST_OF_FOUR = replace(configuration.load("cluster", "dgx_h100"), devices_per_host=4)
SIZES = {
    "vocab_size": 256,
    "hidden_size": WIDTH,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "use_cache": False,
}
KINDS = {"mixtral": MixtralConfig(**SIZES), "gpt_oss": GptOssConfig(**SIZES, head_dim=16)}


def mixture(kind: str = "mixtral", device: str = "meta") -> nn.Module:
    with torch.device(device):
        module = AutoModelForCausalLM.from_config(KINDS[kind])
    module.set_experts_implementation("grouped_mm")
    return module


def loss(output: Any, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())


def tokens(device: str = "meta") -> Tensor:
    return torch.randint(256, (1, LENGTH), device=device)


def predicted(parallel: Mapping[str, int], cluster: Cluster = HOST_OF_FOUR) -> Prediction:
    return membench.predict(
        mixture(), loss, (tokens(), tokens()), cluster=cluster, parallel=parallel, precision="bf16", optimizer="adamw"
    )


def graph_of(parallel: Mapping[str, int]) -> TaskGraph:
    module = mixture()
    workload = Workload("mixture", module, loss, (tokens(),), (tokens(),))
    return Predictor(
        workload, StepRequest(PyTorch()), ranks=ranks_of(module, HOST_OF_FOUR, parallel=parallel)
    ).graph_on()


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_of_one_computes_what_the_module_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, batch = mixture(kind, "cpu"), tokens("cpu")
    expected = module(batch).logits
    alone = SimpleNamespace(size=lambda: 1, get_group=lambda: None)
    monkeypatch.setattr("membench.steps.parallel.expert_parallel.all_to_all", lambda rows, *_: rows)
    divided = deepcopy(module)
    with experts_divided(divided, alone):
        torch.testing.assert_close(divided(batch).logits, expected)


def test_tokens_go_to_their_experts_and_come_back_in_both_passes() -> None:
    graph = graph_of({"fsdp": 2, "ep": 2})
    sent = [task for task in graph.tasks if task.collective and task.collective.kind is CollectiveKind.ALL_TO_ALL]
    assert [task.phase for task in sent] == [Phase.FORWARD] * 2 * LAYERS + [Phase.BACKWARD] * 2 * LAYERS
    assert {(each.collective.axis, each.collective.size_bytes) for each in sent if each.collective} == {
        ("ep", LENGTH * CHOSEN * WIDTH * 4)
    }


def test_experts_are_in_shards_over_fewer_ranks_than_other_weights() -> None:
    graph = graph_of({"fsdp": 2, "ep": 2})
    gathered = {
        task.name.partition(":")[0]: task.collective.axis
        for task in graph.tasks
        if task.collective and task.collective.kind is CollectiveKind.ALL_GATHER
    }
    of_experts = {name for name in gathered if "experts" in name}
    assert len(of_experts) == LAYERS
    assert {gathered[name] for name in of_experts} == {"fsdp"}
    assert {axis for name, axis in gathered.items() if name not in of_experts} == {"fsdp+ep"}


@pytest.mark.slow
def test_each_rank_has_its_part_of_all_weights_and_gathers_only_its_own_experts() -> None:
    parts = [predicted(axes).parts_bytes for axes in ({"fsdp": 4}, {"fsdp": 2, "ep": 2}, {"ep": 4})]
    assert len({(each["weights"], each["optimizer state"]) for each in parts}) == 1
    gathered = [each["gathered weights"] for each in parts]
    assert gathered[0] > gathered[1] > gathered[2]


def test_fewer_experts_than_ranks_are_divided_along_another_dimension() -> None:
    """Along their first one the first rank would have a whole expert, as under `fully_shard` alone."""
    host = replace(HOST_OF_FOUR, devices_per_host=16)
    whole, divided = (predicted(axes, cluster=host) for axes in ({"fsdp": 16}, {"fsdp": 4, "ep": 4}))
    assert divided.parts_bytes["weights"] < 0.7 * whole.parts_bytes["weights"]


def test_what_cannot_be_divided_is_refused() -> None:
    three = SimpleNamespace(size=lambda: 3, get_group=lambda: None)
    with pytest.raises(MembenchError, match="3 ranks of ep; choose a divisor"), experts_divided(mixture(), three):
        pass
    with pytest.raises(MembenchError, match="no module with an attribute num_experts"):
        experts_in(nn.Linear(4, 4))


@pytest.mark.parametrize("parallel", [{"dp": 2, "ep": 2}, {"pp": 2, "ep": 2}])
def test_it_combines_with_replicas_and_pipelines(parallel: dict[str, int]) -> None:
    assert predicted(parallel).step_time_s > 0


def test_routers_are_not_experts() -> None:
    assert [name.rpartition(".")[2] for name in experts_in(mixture())] == ["experts"] * LAYERS
