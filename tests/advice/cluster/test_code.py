"""The code of an answer in which sequences or experts are divided: its meshes are the ones that are predicted."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import membench
from membench.advice.cluster.code import program, torchtitan
from membench.advice.cluster.combinations import Axes, Combination
from membench.advice.cluster.rank_options import RankOptions
from membench.advice.cluster.text import values
from membench.core import configuration
from membench.core.hardware.mesh import BOTH, Mesh
from membench.models.checkpointing import Checkpointing
from membench.models.llama import TokenLoss
from membench.steps.arguments import in_process, workload_of
from tests.helpers.advice.cluster_advice import advised
from tests.helpers.networks.llama import small_llama

RANK, CLUSTER = 13, replace(configuration.load("cluster", "dgx_h100"), hosts=2)
RINGS: list[Axes] = [
    (("pp", 1), ("dp", 1), ("fsdp", 1), ("cp", 16), ("tp", 1)),
    (("pp", 1), ("dp", 2), ("fsdp", 2), ("cp", 2), ("tp", 2)),
    (("pp", 2), ("dp", 1), ("fsdp", 4), ("cp", 2), ("tp", 1)),
]
EXPERTS: list[Axes] = [
    (("pp", 1), ("dp", 1), ("fsdp", 4), ("ep", 4), ("tp", 1)),
    (("pp", 2), ("dp", 2), ("fsdp", 1), ("ep", 4), ("tp", 1)),
]


@pytest.fixture(scope="module")
def found() -> membench.ClusterAdvice:
    """An answer, whose rows do not matter."""
    with torch.device("meta"):
        tokens = torch.zeros(1, 64, dtype=torch.long)
        module = small_llama()
    options = RankOptions(
        CLUSTER,
        parallel={"pp": 2, "fsdp": 8},
        checkpointing=(Checkpointing.NONE,),
        batch_size=1,
        reduce_dtype=torch.float32,
    )
    return advised(workload_of(module, TokenLoss(), (tokens, tokens), precision="bf16"), options, 1)


@pytest.mark.slow
def test_settings_of_the_allocator_are_in_numbers_words_and_code(found: membench.ClusterAdvice) -> None:
    assert values(found)["allocator"] == ""
    chosen = "max_split_size_mb:128"
    device = in_process(found.cluster.profile, {"allocator": chosen})
    other = replace(found, cluster=replace(found.cluster, device=device))
    assert values(other)["allocator"] == chosen
    assert str(other).splitlines()[0] == f"{str(found).splitlines()[0]}, {chosen}"
    [plan] = found.plans[:1]
    first, *rest = program(other, plan.combination)
    assert first == f"# with PYTORCH_ALLOC_CONF={chosen}"
    assert rest == program(found, plan.combination)


@pytest.fixture
def joined() -> Iterator[None]:
    """This process is one of sixteen, the others of which do not exist."""
    dist.init_process_group("fake", rank=RANK, world_size=CLUSTER.devices)
    yield
    dist.destroy_process_group()


def meshes_of(lines: list[str]) -> dict[str, Any]:
    """Return the meshes that a program makes, by name."""
    made: dict[str, Any] = {"init_device_mesh": init_device_mesh}
    for line in lines:
        if line.startswith(("mesh = ", "sequences = ", "experts = ")):
            exec(line.replace('"cuda"', '"cpu"'), made)
    return made


def group(axes: Axes, *names: str) -> list[int]:
    """Return the ranks along some axes with which this one shares what is predicted."""
    groups = Mesh(CLUSTER, axes).groups(BOTH.join(names))
    return next(list(ranks) for ranks in groups if RANK in ranks)


@pytest.mark.parametrize("axes", RINGS)
@pytest.mark.usefixtures("joined")
def test_sequences_are_divided_over_the_ranks_of_the_ring(found: membench.ClusterAdvice, axes: Axes) -> None:
    row = Combination(axes, dict(axes)["pp"] == 1, Checkpointing.FULL, 1, accumulate=8)
    lines = program(found, row)
    ast.parse("\n".join(lines))
    made = meshes_of(lines)
    assert made["sequences"].mesh.tolist() == group(axes, "cp")
    assert made["mesh"]["fsdp"].mesh.tolist() == group(axes, "fsdp", "cp")
    text = "\n".join(lines)
    assert "import context_parallel" in text and "with context_parallel(sequences, buffers=" in text
    options = dict(line.split() for line in torchtitan(found, row) if " " in line)
    assert options["--parallelism.context_parallel_degree"] == str(dict(axes)["cp"])
    assert options["--parallelism.data_parallel_shard_degree"] == str(dict(axes)["fsdp"])
    assert "--parallelism.expert_parallel_degree" not in options


@pytest.mark.parametrize("axes", EXPERTS)
@pytest.mark.usefixtures("joined")
def test_experts_are_in_shards_over_fewer_ranks(found: membench.ClusterAdvice, axes: Axes) -> None:
    row = Combination(axes, dict(axes)["pp"] == 1, Checkpointing.NONE, 1, accumulate=8)
    lines = program(found, row)
    ast.parse("\n".join(lines))
    made = meshes_of(lines)
    assert made["experts"]["ep"].mesh.tolist() == group(axes, "ep")
    assert made["experts"]["fsdp"].mesh.tolist() == group(axes, "fsdp")
    assert made["mesh"]["fsdp"].mesh.tolist() == group(axes, "fsdp", "ep")
    sizes = dict(axes)
    text = "\n".join(lines)
    assert f"len(weight) < {sizes['fsdp'] * sizes['ep']}" in text
    assert f"set_gradient_divide_factor({sizes['dp'] * sizes['fsdp'] * sizes['ep']})" in text
    options = dict(line.split() for line in torchtitan(found, row) if " " in line)
    assert options["--parallelism.expert_parallel_degree"] == str(sizes["ep"])
    assert options["--parallelism.data_parallel_shard_degree"] == str(sizes["fsdp"] * sizes["ep"])
