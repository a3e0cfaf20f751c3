"""`membench.advise` on several GPUs: the fastest is not pruned, bounds hold, and the code sets what the row has."""

import ast
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.advice.cluster import jobs as cluster_jobs
from membench.advice.cluster.code import program, torchtitan
from membench.advice.cluster.combinations import Combination
from membench.advice.cluster.rank_bounds import least_step_time_s
from membench.advice.cluster.rank_options import RankOptions
from membench.advice.cluster.text import values
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.hardware.mesh import Mesh
from membench.core.step.pipeline import Pipeline
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.cost.roofline import RooflineCost
from membench.models.checkpointing import Checkpointing, with_checkpointing
from membench.models.llama import Llama, TokenLoss
from membench.planning.parallel.pipeline import pipelined
from membench.steps.arguments import as_update, workload_of
from membench.steps.parallel.division import Division
from membench.steps.parallel.ranks import Ranks
from tests.helpers.advice.cluster_advice import advised, bounds
from tests.helpers.networks.llama import small_llama

KINDS = (Checkpointing.NONE, Checkpointing.FULL)
CARD = replace(configuration.load("device", "h100"), memory_bytes=4100 * MIB, context_bytes=100 * MIB)
CLUSTER = replace(configuration.load("cluster", "dgx_h100"), hosts=1, devices_per_host=4, device=CARD)


def network(layers: int = 2, length: int = 4096) -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
    sizes = {
        "layers": layers,
        "width": 4096,
        "heads": 32,
        "groups": 4,
        "inner": 8192,
        "vocabulary": 1000,
        "length": length,
    }
    with torch.device("meta"):
        tokens = torch.randint(1000, (1, length))
        return Llama(**sizes), TokenLoss(), (tokens, tokens)  # type: ignore[arg-type]


def workload(layers: int = 2, length: int = 4096) -> Workload:
    return workload_of(*network(layers, length), precision="bf16")


OPTIONS = RankOptions(CLUSTER, reduce_dtype=torch.float32, checkpointing=KINDS, batch_size=1)
PIPELINES = replace(
    OPTIONS,
    cluster=replace(CLUSTER, devices_per_host=8, device=replace(CARD, memory_bytes=80_000 * MIB)),
    parallel={"pp": 2, "fsdp": 4},
    reduce_dtype=None,
)


def advice(shown: int | None, options: RankOptions = OPTIONS, of: Workload | None = None) -> membench.ClusterAdvice:
    return advised(of or workload(), options, shown)


@pytest.fixture(scope="module")
def exhaustive() -> membench.ClusterAdvice:
    return advice(None)


@pytest.mark.slow
def test_pruning_keeps_the_fastest(exhaustive: membench.ClusterAdvice) -> None:
    pruned = advice(1)
    assert pruned.too_slow > 0 and exhaustive.too_slow == 0
    assert pruned.plans[0] == exhaustive.plans[0]
    for found in (pruned, exhaustive):
        assert len(found.plans) + found.too_large + found.too_slow + found.failed == found.searched
    assert {plan.combination.checkpointing for plan in exhaustive.plans} > {Checkpointing.FULL}
    assert exhaustive.too_large > 0


@pytest.mark.slow
def test_bounds_are_not_above_what_is_predicted(exhaustive: membench.ClusterAdvice) -> None:
    for plan, least_bytes, least_s in bounds(exhaustive, OPTIONS, workload()):
        stages = plan.prediction.stages or (plan.prediction,)
        assert least_bytes <= max(each.allocated_bytes for each in stages)
        least = 0.4 if plan.combination.stages > 1 else 0.5
        assert least * plan.prediction.step_time_s < least_s <= plan.prediction.step_time_s
    assert {axis for plan in exhaustive.plans for axis in plan.combination.parallel} == {"pp", "dp", "fsdp", "tp"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "length", "batch_size", "micro_batches"),
    [pytest.param(2, 4096, 8, {1, 2, 4, 8, 16}, marks=pytest.mark.exhaustive), (4, 512, 1, {1, 2})],
)
def test_bounds_of_pipelines_are_not_above_what_is_predicted(
    layers: int, length: int, batch_size: int, micro_batches: set[int]
) -> None:
    """Long sequences, whose kernels take most of the time, and short ones, beside which weights take most memory."""
    options, of = replace(PIPELINES, batch_size=batch_size), workload(layers, length)
    found = advice(None, options, of)
    assert {plan.combination.accumulate for plan in found.plans} == micro_batches
    for plan, least_bytes, least_s in bounds(found, options, of):
        assert least_bytes <= max(each.allocated_bytes for each in plan.prediction.stages)
        assert least_s <= plan.prediction.step_time_s


@pytest.mark.parametrize("dtype", [torch.float32, None])
def test_the_bound_on_time_has_the_sums_of_gradients_and_no_more(dtype: torch.dtype | None) -> None:
    """Short sequences, beside whose kernels sums are long; a single rank waits for none: its kernels are the bound."""
    step = cluster_jobs.RankWorkload(
        workload(2, 64), {"LlamaBlock"}, ("blocks.0", "blocks.1"), CLUSTER, None, None, None, None
    )
    found = cluster_jobs.captured(step, cluster_jobs.Variant(Checkpointing.NONE, 1, is_cut=True))
    pipeline = Pipeline(1, (), 3, gradient_dtype=dtype)
    cost = RooflineCost(CARD, configuration.load("framework", "pytorch").efficiency)
    [rank] = pipelined(pickle.loads(found.graph), pipeline)
    kernels_s = sum(map(cost.task_time_s, rank.graph.tasks))
    passes_s = 3 * found.numbers.total("kernels_s")
    least_s = least_step_time_s(found.numbers, Ranks(Mesh(CLUSTER, (("dp", 4),)), None, pipeline=pipeline))
    assert passes_s + (kernels_s - passes_s) / 2 < least_s <= kernels_s


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["inductor", None])
def test_blocks_are_compiled_each_by_itself(exhaustive: membench.ClusterAdvice, kernels: str | None) -> None:
    """As the code says; a module whose blocks were compiled before is answered so without an option."""
    module, loss, batch = network()
    for block in () if kernels else module.blocks:  # type: ignore[union-attr]
        block.compile()
    options = replace(OPTIONS, parallel={"fsdp": 4}, checkpointing=(Checkpointing.NONE,), kernels=kernels)
    found = advice(None, options, workload_of(module, loss, batch, precision="bf16"))
    combination = found.plans[0].combination
    eager = next(
        each
        for each in exhaustive.plans
        if each.combination.parallel == {"fsdp": 4} and each.combination.checkpointing is Checkpointing.NONE
    )
    assert found.plans[0].prediction.step_time_s < eager.prediction.step_time_s
    compiled = network()[0]
    for block in compiled.blocks:  # type: ignore[union-attr]
        block.compile()
    same = membench.predict(
        compiled, loss, batch, precision="bf16", optimizer="adamw", cluster=CLUSTER,
        parallel={"fsdp": 4}, reduce_dtype=torch.float32, reshard_after_forward=combination.reshard_after_forward,
    )  # fmt: skip
    assert same == found.plans[0].prediction and found.is_alike
    code = "\n".join(program(found, combination))
    ast.parse(code)
    assert ("model.get_submodule(name).compile()" in code) is (kernels is not None)
    assert ("--compile.enable" in torchtitan(found, combination)) is (kernels is not None)
    assert ("compiled block by block" if kernels else "compiled as given") in str(found).splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["dp", "tp", "pp"])
def test_a_row_is_what_predict_predicts(exhaustive: membench.ClusterAdvice, axis: str) -> None:
    plan = next(
        each
        for each in exhaustive.plans
        if each.combination.checkpointing is Checkpointing.NONE and axis in each.combination.parallel
    )
    module, loss, _ = network()
    tokens = torch.empty(plan.combination.micro_batch, 4096, dtype=torch.int64, device="meta")
    same = membench.predict(
        module,
        loss,
        (tokens, tokens),
        precision="bf16",
        optimizer="adamw",
        cluster=CLUSTER,
        parallel=plan.combination.parallel,
        accumulate=plan.combination.accumulate,
        reshard_after_forward=plan.combination.reshard_after_forward and plan.combination.stages == 1,
        reduce_dtype=torch.float32,
    )
    assert same == plan.prediction


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "blocks"), [(Checkpointing.EVERY_SECOND, 9), (Checkpointing.FULL, 8)])
def test_a_deep_network_has_the_numbers_of_a_copy_with_few_blocks(kind: Checkpointing, blocks: int) -> None:
    with torch.device("meta"):
        tokens = torch.randint(100, (1, 64))
        module = small_llama(layers=blocks, groups=2, inner=128)
    names = tuple(f"blocks.{number}" for number in range(blocks))
    of = workload_of(module, TokenLoss(), (tokens, tokens), precision="bf16")
    step = cluster_jobs.RankWorkload(of, {"LlamaBlock"}, names, CLUSTER, None, as_update("adamw"), None, None)
    for tensor in (1, 2) if kind is Checkpointing.FULL else (1,):
        variant = cluster_jobs.Variant(kind, 1, Division(tensor))
        found = cluster_jobs.numbers_of(step, variant)
        whole = cluster_jobs.captured(step, variant).numbers
        assert found is not None and found.is_near(whole) and found.at == whole.at
        assert not found.is_near(replace(whole, places=(whole.places[1], *whole.places[1:])))
    module.blocks[4].mlp.gate.weight.requires_grad_(False)  # type: ignore[union-attr]
    assert cluster_jobs.numbers_of(step, cluster_jobs.Variant(kind, 1)) is None


@pytest.mark.slow
def test_code_divides_a_model_over_tensor_parallel_ranks_and_stages(exhaustive: membench.ClusterAdvice) -> None:
    axes = (("pp", 2), ("dp", 1), ("fsdp", 2), ("tp", 2))
    row = Combination(axes, False, Checkpointing.EVERY_SECOND, 1, accumulate=8)
    code = "\n".join(program(exhaustive, row))
    ast.parse(code)
    for line in (
        'mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))',
        'parallelize_module(model, mesh["tp"], plan)',
        "begins = [0, 1, 2]",
        "Schedule1F1B(part, n_microbatches=8, loss_fn=criterion)",
        'mesh=mesh["fsdp"], reshard_after_forward=False',
    ):
        assert line in code
    options = dict(line.split() for line in torchtitan(exhaustive, row) if " " in line)
    assert options["--parallelism.tensor_parallel_degree"] == "2"
    assert options["--parallelism.pipeline_parallel_degree"] == "2"
    assert options["--parallelism.pipeline_parallel_microbatch_size"] == "1"
    assert options["--training.local_batch_size"] == "8" and options["--training.global_batch_size"] == "16"


@pytest.mark.slow
def test_the_table_and_the_values_have_the_rows(exhaustive: membench.ClusterAdvice) -> None:
    text = str(exhaustive)
    assert "Llama, bf16, adamw, simulated on 4 x h100" in text
    assert "a step has 1 sample of 4,096 tokens for each GPU" in text
    found = values(exhaustive)
    assert len(found["plans"]) == len(exhaustive.plans)
    rates = [plan["tokens_per_s"] for plan in found["plans"]]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", Checkpointing)
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_code_names_what_a_row_has(
    exhaustive: membench.ClusterAdvice, kind: Checkpointing, reshard: bool, replicas: int
) -> None:
    row = Combination((("dp", replicas), ("fsdp", 4 // replicas)), reshard, kind, 2, accumulate=3)
    code = "\n".join(program(exhaustive, row))
    ast.parse(code)
    assert f"reshard_after_forward={reshard}, mp_policy=policy)" in code
    assert "param_dtype=torch.bfloat16, reduce_dtype=torch.float32" in code
    assert ("(2, 2), mesh_dim_names" if replicas > 1 else "(4,), mesh_dim_names") in code
    assert ("checkpoint_wrapper(" in code) is (kind is not Checkpointing.NONE)
    assert ("context_fn=contexts" in code) is (kind is Checkpointing.SELECTIVE)
    assert ("number % 2" in code) is (kind is Checkpointing.EVERY_SECOND)
    assert "3 micro-batches of 2" in code
    options = dict(line.split() for line in torchtitan(exhaustive, row) if " " in line)
    assert options["--training.local_batch_size"] == "2" and options["--training.global_batch_size"] == "24"
    assert options["--parallelism.data_parallel_replicate_degree"] == str(replicas)
    assert options["--parallelism.fsdp_reshard_after_forward"] == ("default" if reshard else "never")
    modes = {Checkpointing.EVERY_SECOND: "selective"}
    assert options["--activation_checkpoint.mode"] == modes.get(kind, kind)


def test_where_nothing_fits_the_nearest_is_named() -> None:
    found = advice(None, replace(OPTIONS, cluster=replace(CLUSTER, device=replace(CARD, memory_bytes=101 * MIB))))
    text = str(found)
    assert not found.fits and found.nearest is not None
    assert "No combination fits." in text and "GPUs or more have room" in text
    assert found.searched == found.too_large == found.too_large_by_bound


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"nodes": 0}, "nodes is a positive whole number, not 0"),
        ({"parallel": {"fsdp": 3}}, "fsdp 3 is for 3 devices, but the cluster has 8"),
        ({"parallel": {"xp": 8}}, "there is no axis xp"),
        ({"parallel": {"fsdp": 4, "ep": 2}}, "no module with an attribute num_experts"),
        ({"machine": "laptop"}, "machine 'laptop' is not known"),
        ({"device": "h200"}, "the cluster's GPUs are h100"),
        ({"device": "a100_80gb"}, "a100_80gb has PCI Express, and .* joined by NVLink 4 x18"),
        ({"checkpointing": ["some"]}, "'some' is not known; there are: none, selective, every_second, full"),
        ({"batch_size": 0}, "batch_size is a positive whole number"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], answer: str) -> None:
    with pytest.raises(MembenchError, match=answer):
        membench.advise(*network(), cluster="dgx_h100", **options)


def test_checkpointed_copies_share_weights_and_leave_the_module_as_it_is() -> None:
    module = network()[0]
    copied = with_checkpointing(module, {"LlamaBlock"}, Checkpointing.EVERY_SECOND)
    assert all(one is other for one, other in zip(module.parameters(), copied.parameters(), strict=True))
    assert ["forward" in vars(block) for block in copied.blocks] == [False, True]  # type: ignore[union-attr]
    assert not any("forward" in vars(block) for block in module.blocks)  # type: ignore[union-attr]
