"""MPT: as many weights as the published table says, checkpointing changes nothing, and metrics only what is held."""

import pytest
import torch
from torch import nn

import membench
from experiments.validation.programs.mpt import MPT, DecoupledAdamW, TokenLoss
from membench.core.configuration import ROOT
from membench.core.graph.precision import Precision
from membench.core.step.workload import Workload
from membench.lab.validation.dataset import load_dataset
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

SMALL = {"layers": 2, "width": 64, "heads": 4, "length": 32, "vocabulary": 128}
DATASETS = {
    name: load_dataset(ROOT / "experiments" / "validation", name)
    for name in ("llm_foundry", "llm_foundry_80gb", "llm_foundry_h100")
}


def weights_of(row_values: dict[str, int]) -> int:
    with torch.device("meta"):
        block, network = (
            MPT(layers=layers, **{name: row_values[name] for name in ("width", "heads", "length")}) for layers in (1, 0)
        )
    of_block, others = (sum(weight.numel() for weight in each.parameters()) for each in (block, network))
    return others + row_values["layers"] * (of_block - others)


@pytest.mark.parametrize(("name", "rows"), [("llm_foundry", 78), ("llm_foundry_80gb", 86), ("llm_foundry_h100", 77)])
def test_every_published_row_has_the_number_of_weights_that_the_table_says(name: str, rows: int) -> None:
    assert len(DATASETS[name].rows) == rows
    for row in DATASETS[name].rows:
        if row.reason:
            continue
        values = dict(row.values)
        assert weights_of(values) == values["parameters"], row.number


def test_the_steps_time_is_that_of_all_micro_batches_of_a_gpu() -> None:
    row = next(row for row in DATASETS["llm_foundry"].rows if row.has({"network": "13b", "length": 8192}))
    assert row.measured == {"step_time_s": pytest.approx(1 * 16 * 8192 / 1407)}


def test_checkpointing_and_metrics_change_nothing() -> None:
    found = []
    for options in (
        {},
        {"is_checkpointed": True},
        {"is_checkpointed": True, "stops_early": True},
        {"has_metrics": False},
    ):
        torch.manual_seed(0)
        network = MPT(**SMALL, **options)
        tokens = torch.randint(128, (2, 32))
        TokenLoss()(network(tokens), tokens).backward()
        found.append([weight.grad for weight in network.parameters()])
    for others in found[1:]:
        for gradient, other in zip(found[0], others, strict=True):
            assert torch.equal(gradient, other)


def test_a_step_is_captured_and_a_checkpointed_one_holds_less() -> None:
    found = []
    for options in ({"is_checkpointed": False}, {"is_checkpointed": True}, {"has_metrics": False}):
        with torch.device("meta"):
            network = MPT(layers=4, width=768, heads=12, length=2048, vocabulary=1024, **options)
            tokens = torch.randint(1024, (8, 2048))
        found.append(
            membench.predict(
                network, TokenLoss(), (tokens, tokens), device="a100_40gb", precision="bf16", optimizer=None
            )
        )
    kept, checkpointed, without_metrics = found
    assert checkpointed.allocated_bytes < 0.7 * kept.allocated_bytes
    assert checkpointed.step_time_s > kept.step_time_s > without_metrics.step_time_s


def test_metrics_follow_the_last_gradient_and_hold_eight_bytes_for_a_logit() -> None:
    with torch.device("meta"):
        network = MPT(**SMALL)
        tokens = torch.zeros(2, 32, dtype=torch.long)
    workload = Workload("mpt", network, TokenLoss(), (tokens,), (tokens,), precision=Precision.BF16)
    captured = Predictor(workload, StepRequest(PyTorch())).graph_on()
    graph = captured.plain or captured
    metrics = [task for task in graph.tasks if task.name.endswith("_log_softmax")]
    assert len(metrics) == 2
    gradients = {value.block for _, value in graph.gradients if value}
    assert metrics[0].index > max(task.index for task in graph.tasks if gradients & {*task.reads, *task.writes})
    logits = 2 * 32 * SMALL["vocabulary"]
    held = [graph.blocks[block].size_bytes for block in (*metrics[0].reads, *metrics[0].creates)]
    converted = graph.tasks[metrics[0].index + 1]
    held += [graph.blocks[block].size_bytes for block in converted.creates]
    assert held == [2 * logits, 2 * logits, 4 * logits]


def test_the_update_is_adams_on_clipped_gradients() -> None:
    weight, other = (nn.Parameter(torch.ones(4)) for _ in range(2))
    optimizer = DecoupledAdamW([weight], lr=0.1)
    weight.grad = torch.full((4,), 3.0)
    optimizer.step()
    other.grad = torch.full((4,), 3.0)
    nn.utils.clip_grad_norm_([other], 1.0)
    torch.testing.assert_close(weight.grad, other.grad)
    state = optimizer.state[weight]
    torch.testing.assert_close(state["mean"], 0.1 * other.grad)
    torch.testing.assert_close(state["square"], 0.05 * other.grad**2)
