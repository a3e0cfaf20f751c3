"""Sequences and experts in the search on several GPUs: what is divided, where, and rows as predicted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MixtralConfig

import membench
from membench.advice.cluster.advice import ClusterAdvice, RankPlan
from membench.advice.cluster.rank_options import RankOptions
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.models.checkpointing import Checkpointing
from membench.models.llama import Llama, TokenLoss
from membench.steps.arguments import workload_of
from tests.helpers.advice.cluster_advice import advised, bounds

HOST_OF_FOUR = replace(configuration.load("cluster", "dgx_h100"), hosts=1, devices_per_host=4)
H100 = configuration.load("device", "h100")
LENGTH, BLOCKS = 8192, ("blocks.0", "blocks.1")

with torch.device("meta"):
    TOKENS = torch.randint(1000, (1, LENGTH))
    LLAMA = Llama(layers=2, width=512, heads=8, groups=8, inner=1024, vocabulary=1000, length=LENGTH)
    MIXTURE: Any = AutoModelForCausalLM.from_config(
        MixtralConfig(
            vocab_size=256,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            num_local_experts=4,
            num_experts_per_tok=2,
            use_cache=False,
        )
    )
    WORDS = torch.randint(256, (1, 128))
MIXTURE.set_experts_implementation("grouped_mm")


def loss_of_mixture(output: Any, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())


STEPS: dict[str, tuple[nn.Module, Any, tuple[Tensor, Tensor]]] = {
    "llama": (LLAMA, TokenLoss(), (TOKENS, TOKENS)),
    "mixture": (MIXTURE, loss_of_mixture, (WORDS, WORDS)),
}


def asked(memory_bytes: int, **options: Any) -> RankOptions:
    device = replace(H100, memory_bytes=memory_bytes, context_bytes=MIB)
    given = {"checkpointing": (Checkpointing.NONE,), "reduce_dtype": torch.float32, **options}
    return RankOptions(replace(HOST_OF_FOUR, device=device), **given)


def work_of(name: str) -> Workload:
    module, loss, batch = STEPS[name]
    return workload_of(module, loss, batch, precision="bf16")


def found_for(name: str, memory_bytes: int, shown: int | None = None, **options: Any) -> ClusterAdvice:
    return advised(work_of(name), asked(memory_bytes, **options), shown)


def memory_of(parallel: dict[str, int]) -> int:
    """Return what a step of the long sequences reserves."""
    return predicted("llama", parallel, H100).reserved_bytes


def predicted(name: str, parallel: dict[str, int], device: Any, **options: Any) -> membench.Prediction:
    module, loss, (tokens, _) = STEPS[name]
    samples = options.pop("micro_batch", 1)
    batch = (torch.empty(samples, tokens.shape[1], dtype=tokens.dtype, device="meta"),) * 2
    return membench.predict(
        module, loss, batch, device=device, cluster=HOST_OF_FOUR, precision="bf16", optimizer="adamw",
        parallel=parallel, reduce_dtype=torch.float32, **options,
    )  # fmt: skip


def predicted_again(name: str, plan: RankPlan, memory_bytes: int) -> membench.Prediction:
    row = plan.combination
    return predicted(
        name,
        row.parallel,
        replace(H100, memory_bytes=memory_bytes, context_bytes=MIB),
        micro_batch=row.micro_batch,
        accumulate=row.accumulate,
        reshard_after_forward=row.reshard_after_forward and row.stages == 1,
    )


@pytest.fixture(scope="module")
def long() -> tuple[int, ClusterAdvice]:
    """A step that fits with four parts of each sequence alone, and its memory."""
    memory_bytes = memory_of({"cp": 4}) + 16 * MIB
    assert memory_bytes < memory_of({"fsdp": 2, "cp": 2}) < memory_of({"fsdp": 4})
    return memory_bytes, found_for("llama", memory_bytes)


@pytest.mark.slow
def test_sequences_are_divided_where_they_do_not_fit(long: tuple[int, ClusterAdvice]) -> None:
    memory_bytes, found = long
    assert found.best is not None and found.best.combination.division.context > 1
    assert all(plan.combination.micro_batch == 1 for plan in found.plans if "cp" in plan.combination.parallel)
    assert not any("ep" in plan.combination.parallel for plan in found.plans)
    assert len(found.plans) + found.too_large + found.too_slow + found.failed == found.searched
    for plan in found.plans:
        assert predicted_again("llama", plan, memory_bytes) == plan.prediction


@pytest.mark.slow
def test_they_are_whole_where_they_fit() -> None:
    found = found_for("llama", H100.memory_bytes, batch_size=1)
    assert found.best is not None and not found.too_large
    assert not any("cp" in plan.combination.parallel for plan in found.plans)
    asked_for = found_for("llama", H100.memory_bytes, batch_size=1, parallel={"fsdp": 2, "cp": 2})
    assert {plan.combination.micro_batch for plan in asked_for.plans} == {1, 2}
    assert {tuple(plan.combination.parallel) for plan in asked_for.plans} == {("fsdp", "cp")}
    assert asked_for.best is not None and asked_for.best.samples_per_s < found.best.samples_per_s


@pytest.mark.exhaustive
def test_pruning_keeps_the_fastest_ring(long: tuple[int, ClusterAdvice]) -> None:
    memory_bytes, found = long
    pruned = found_for("llama", memory_bytes, shown=1)
    assert pruned.plans[0] == found.plans[0]


class Bidirectional(nn.Module):
    """Attention without a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.embed(tokens)
        for block in self.blocks:
            heads = block(features).unflatten(-1, (8, -1)).transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            features = mixed.transpose(1, 2).flatten(2)
        return self.head(features)  # type: ignore[no-any-return]


class Recurrent(Bidirectional):
    """No attention at all."""

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.embed(tokens)
        for block in self.blocks:
            features = block(features).relu()
        return self.head(features)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "reason"), [(Bidirectional, "is_causal"), (Recurrent, "no attention of Recurrent")])
def test_what_has_no_ring_is_said_once(kind: type[nn.Module], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        monkeypatch.setitem(STEPS, "other", (kind(), TokenLoss(), (TOKENS, TOKENS)))
    found = found_for("other", 100 * MIB, checkpointing=(Checkpointing.NONE, Checkpointing.FULL))
    [refused] = [name for name in found.refused if "cp" in name]
    assert reason in found.refused[refused] and found.failed > 0
    assert not any("cp" in plan.combination.parallel for plan in found.plans)


class Shared(Recurrent):
    """Blocks of one layer, of which all but the first compute nothing by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(self.blocks[0]), nn.Sequential(self.blocks[0])])


def test_a_pipeline_of_blocks_that_share_their_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        monkeypatch.setitem(STEPS, "shared", (Shared(), TokenLoss(), (TOKENS, TOKENS)))
    found = found_for("shared", H100.memory_bytes, batch_size=1)
    [reason] = {text for name, text in found.refused.items() if "pp" in name}
    assert "'blocks.1' is not supported: a stage would begin with it" in reason
    assert found.best is not None and found.failed > 0


@pytest.fixture(scope="module")
def mixtures() -> ClusterAdvice:
    return found_for("mixture", H100.memory_bytes, batch_size=1)


@pytest.mark.slow
def test_experts_are_divided_and_nothing_else_with_them(mixtures: ClusterAdvice) -> None:
    parallel = [plan.combination.parallel for plan in mixtures.plans]
    assert {each.get("ep", 1) for each in parallel} == {1, 2, 4}
    assert {"pp": 2, "ep": 2} in parallel and {"dp": 2, "ep": 2} in parallel
    assert not any("ep" in each and {"cp", "tp"} & each.keys() for each in parallel)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [{"fsdp": 2, "ep": 2}, {"pp": 2, "ep": 2}])
def test_a_row_with_experts_is_what_predict_predicts(mixtures: ClusterAdvice, parallel: dict[str, int]) -> None:
    plan = next(plan for plan in mixtures.plans if plan.combination.parallel == parallel)
    assert predicted_again("mixture", plan, H100.memory_bytes) == plan.prediction


@pytest.mark.slow
def test_bounds_are_not_above_what_is_predicted(long: tuple[int, ClusterAdvice], mixtures: ClusterAdvice) -> None:
    memory_bytes, of_llama = long
    searches = (("llama", of_llama, memory_bytes), ("mixture", mixtures, H100.memory_bytes))
    for name, found, room_bytes in searches:
        for plan, least_bytes, least_s in bounds(found, asked(room_bytes), work_of(name)):
            stages = plan.prediction.stages or (plan.prediction,)
            assert least_bytes <= max(each.allocated_bytes for each in stages)
            assert least_s <= plan.prediction.step_time_s


def test_experts_that_there_are_not_are_refused() -> None:
    with pytest.raises(MembenchError, match="no module with an attribute num_experts"):
        found_for("llama", H100.memory_bytes, parallel={"fsdp": 2, "ep": 2})
