"""Mixtures of experts of transformers: the grouped product is a task, whatever the router chooses."""

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

import membench
from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core.configuration import load
from membench.core.errors import UnsupportedModel
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.workload import Workload
from membench.cost.kernels import kernels_of
from membench.cost.products import Product
from membench.cost.roofline import RooflineCost
from membench.steps.plan import plan
from membench.strategies.memonger import Memonger
from membench.strategies.pytorch import PyTorch
from tests.helpers.networks.contract import COST, as_run
from tests.helpers.steps.checks import check_results_and_peak

TOKENS, EXPERTS, CHOSEN, HIDDEN, INNER = 16, 4, 2, 32, 48
_SIZES = {
    "vocab_size": 64,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": CHOSEN,
    "use_cache": False,
}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


def _configurations() -> dict[str, PretrainedConfig]:
    return {
        "mixtral": MixtralConfig(**_SIZES, num_local_experts=EXPERTS),
        "qwen3_moe": Qwen3MoeConfig(**_SIZES, num_experts=EXPERTS, moe_intermediate_size=16, head_dim=8),
        "deepseek_v3": DeepseekV3Config(
            **{**_SIZES, **_LATENT, "num_key_value_heads": 4},
            n_routed_experts=EXPERTS,
            moe_intermediate_size=16,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
        ),
        "gpt_oss": GptOssConfig(**_SIZES, num_local_experts=EXPERTS, head_dim=8, sliding_window=8),
    }


def _loss(output: object, targets: Tensor) -> Tensor:
    logits: Tensor = output.logits  # type: ignore[attr-defined]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _workload(name: str, experts: str = "grouped_mm") -> Workload:
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(_configurations()[name])
    module.set_experts_implementation(experts)
    tokens = torch.randint(64, (2, TOKENS))
    return Workload(name, module, _loss, (tokens,), (tokens,))


def _grouped(graph: TaskGraph) -> list[str]:
    return [task.name for task in graph.tasks if task.name.endswith(":_grouped_mm")]


@pytest.mark.parametrize("name", _configurations())
def test_a_mixture_of_experts_trains_as_in_plain_pytorch(name: str) -> None:
    case = as_run(_workload(name))
    assert _grouped(case.captured.graph)
    check_results_and_peak(case, plan(case.captured.graph, PyTorch(), COST, None))


def test_experts_that_are_computed_again_give_the_same_bits() -> None:
    case = as_run(_workload("mixtral"))
    check_results_and_peak(case, plan(case.captured.graph, Memonger(), COST, None))


@pytest.mark.parametrize("name", _configurations())
def test_a_gpu_runs_grouped_products(name: str) -> None:
    work = _workload(name)
    answer = membench.predict(
        work.module, _loss, (work.inputs[0], work.targets[0]), device="a100_80gb", precision="bf16"
    )
    assert answer.fits


def test_a_grouped_product_is_counted_by_all_its_rows_and_priced_in_equal_groups() -> None:
    graph = capture(_workload("mixtral"), ANY_GPU).graph
    tasks = [task for task in graph.tasks if task.name in _grouped(graph) and "layers.0." in task.name]
    rows = 2 * TOKENS * CHOSEN
    up, down = 2 * rows * HIDDEN * 2 * INNER, 2 * rows * INNER * HIDDEN
    assert [task.operations for task in tasks] == [up, down, down, down, up, up]
    products = {kernel.product for task in tasks for kernel in kernels_of(task)}
    per_expert = rows // EXPERTS
    assert Product(EXPERTS, per_expert, 2 * INNER, HIDDEN) in products
    assert Product(EXPERTS, 2 * INNER, HIDDEN, per_expert) in products  # of a weight's gradient
    cost = RooflineCost(load("device", "a100_80gb"), load("framework", "pytorch").efficiency)
    assert all(cost.task_time_s(task) > 0 for task in tasks)


def test_experts_in_a_loop_over_those_that_were_hit_are_refused_in_a_sentence() -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.set_experts_implementation\('grouped_mm'\)"):
        capture(_workload("mixtral", "eager"))


@pytest.mark.exhaustive
def test_mixtral_8x7b_is_predicted_on_the_meta_device() -> None:
    """46.7 billion weights (Jiang et al. 2024, arXiv 2401.04088: 47 billion); the defaults of its configuration."""
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(MixtralConfig(use_cache=False), dtype=torch.bfloat16)
        tokens = torch.zeros(1, 512, dtype=torch.long)
    weights = sum(weight.numel() for weight in module.parameters())
    assert weights == 46_702_792_704
    answer = membench.predict(module, _loss, (tokens, tokens), device="a100_80gb", precision="bf16")
    assert not answer.fits
    assert answer.parts_bytes["weights"] >= 2 * weights
    # 12.9 billion weights take part for each token (the same paper): 6 operations each, at most at the peak rate
    assert answer.step_time_s > 6 * 12.9e9 * 512 / 312e12
