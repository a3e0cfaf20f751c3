"""Shards of mixed dtypes: each weight, its gradient and its states keep its own, whatever the step uses."""

from itertools import pairwise
from math import ceil, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import membench
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.hardware.cluster import Cluster
from membench.core.step.workload import Workload
from membench.models.fine_tuning import quantized
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

FLOATING = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
FIXED = [torch.uint8, torch.int8, torch.int64]
AXES = [{"fsdp": 2}, {"fsdp": 3}, {"fsdp": 8}, {"dp": 2, "fsdp": 4}]
ADAM = membench.WeightUpdate(torch.optim.Adam)


class Layer(nn.Module):
    """A product, and a table of a dtype that no conversion changes."""

    def __init__(self, wide: int, high: int, dtype: torch.dtype, table: torch.dtype, trains: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(wide, high, dtype=dtype).requires_grad_(trains)
        self.table = nn.Parameter(torch.zeros(5, 3, dtype=table), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.linear(inputs.to(self.linear.weight.dtype))
        return made + self.table.sum().to(made.dtype)


class Network(nn.Module):
    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.unused = nn.Parameter(torch.zeros(7, 2, dtype=torch.float16))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


def rank_graph(module: nn.Module, width: int, parallel: dict[str, int], precision: str | None) -> TaskGraph:
    with torch.device("meta"):
        inputs = torch.empty(4, width)
    cluster = Cluster(devices_per_host=prod(parallel.values()), device="a100_80gb")
    ranks = ranks_of(
        module, cluster, parallel=parallel, wrapped=["Layer", "Linear4bit", "FrozenNF4Linear", "Linear8bitLt"]
    )
    workload = Workload(
        "mixed",
        module,
        lambda output: output.float().sum(),
        (inputs,),
        precision=None if precision is None else Precision.of_step(precision),
    )
    return Predictor(workload, StepRequest(PyTorch(), optimizer=ADAM), ranks).graph_on()


def bytes_of(graph: TaskGraph, *roles: Role) -> int:
    return sum(block.size_bytes for block in graph.blocks if block.role in roles)


def shard_elements(weight: Tensor, ranks: int) -> int:
    first, *others = weight.shape or (1,)
    return ceil(first / ranks) * prod(others)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_shards_of_any_mixture_have_the_bytes_of_each_weights_own_dtype(data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.integers(1, 20), min_size=3, max_size=5))
    parallel = data.draw(st.sampled_from(AXES))
    precision = data.draw(st.sampled_from([None, "bf16", "fp16", "amp_bf16"]))
    # fully_shard has one dtype of the trained weights of a module, and any of frozen ones
    with torch.device("meta"):
        layers = [
            Layer(
                wide,
                high,
                data.draw(st.sampled_from(FLOATING)),
                data.draw(st.sampled_from(FIXED)),
                data.draw(st.booleans()),
            )
            for wide, high in pairwise(widths)
        ]
        layers[-1].linear.requires_grad_(True)
        module = Network(layers)
    graph = rank_graph(module, widths[0], parallel, precision)
    ranks = parallel["fsdp"]
    kept = {name: shard_elements(weight, ranks) * weight.itemsize for name, weight in module.named_parameters()}
    found = {block.name: block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT}
    assert found == kept
    trained = sum(kept[name] for name, weight in module.layers.named_parameters("layers") if weight.requires_grad)
    assert bytes_of(graph, Role.APPLIED_GRADIENT) == trained
    of_averages = (block for block in graph.blocks if block.role is Role.OPTIMIZER_STATE)
    assert sum(each.size_bytes for each in of_averages if not each.name.endswith(":step")) == 2 * trained


@pytest.mark.parametrize("parallel", AXES)
@pytest.mark.parametrize("precision", [None, "bf16", "amp_bf16"])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32])
def test_packed_weights_stay_packed_in_shards(
    storage: torch.dtype, precision: str | None, parallel: dict[str, int]
) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    width, layers = 128, 3
    with torch.device("meta"):
        module = nn.Sequential(
            *(bitsandbytes.nn.Linear4bit(width, width, bias=False, quant_storage=storage) for _ in range(layers)),
            nn.Linear(width, 16),
        )
    graph = rank_graph(module, width, parallel, precision)
    packed = [
        block.size_bytes
        for block in graph.blocks
        if block.role is Role.WEIGHT and block.name in dict(module.named_parameters())
    ]
    ranks = parallel["fsdp"]
    elements = width * width // 2 // storage.itemsize
    assert packed[:layers] == [ceil(elements / ranks) * storage.itemsize] * layers
    assert packed[layers:] == [4 * ceil(16 / ranks) * width, 4 * ceil(16 / ranks)]


@pytest.mark.parametrize(
    ("kind", "library", "weight_bytes"), [("torchao.nf4", "torchao", 0.5), ("bnb.int8", "bitsandbytes", 1)]
)
def test_quantized_weights_are_gathered_with_their_module_in_their_own_bytes(
    kind: str, library: str, weight_bytes: float
) -> None:
    """torchao stores a weight in several tensors, each with a name of its own."""
    pytest.importorskip(library)
    width = 256
    with torch.device("meta"):
        frozen = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))
        module = nn.Sequential(quantized(frozen, kind), Layer(width, 16, torch.float32, torch.uint8, True))
    graph = rank_graph(module, width, {"fsdp": 4}, "bf16")
    gathers = [
        task.collective.size_bytes
        for task in graph.tasks
        if task.collective and task.name.startswith("0.") and "all-gather" in task.name
    ]
    assert gathers == [pytest.approx(weight_bytes * width**2, rel=0.05)] * 3
    largest = sorted(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT)[-4:]
    assert largest[1:] == [weight_bytes * width**2 / 4] * 3
