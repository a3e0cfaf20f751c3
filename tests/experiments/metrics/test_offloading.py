"""The numbers and the program of experiments/offloading."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from experiments.offloading.metrics import largest_model, operations_per_s
from experiments.offloading.programs import CpuAdam, Decoder
from membench.core.record import Outcome, Record, Source
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.lab.papers.reading.loader import load_paper
from tests.helpers.lab.papers import EXPERIMENTS

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def offloading() -> Paper:
    return load_paper(EXPERIMENTS / "offloading")


def test_the_loss_in_parts_is_that_of_all_tokens() -> None:
    torch.manual_seed(0)
    decoder = Decoder("llama", **SMALL, num_hidden_layers=1)
    tokens, labels = (torch.randint(64, (2, 300)) for _ in range(2))
    parts: list[Tensor] = []
    decoder.head.register_forward_hook(lambda module, inputs, logits: parts.append(logits))
    loss = decoder(tokens, labels).loss
    assert [part.shape[1] for part in parts] == [128, 128, 44]
    torch.testing.assert_close(loss, functional.cross_entropy(torch.cat(parts, 1).flatten(0, 1), labels.flatten()))


def test_adam_rounds_what_single_precision_gives_and_keeps_no_copy() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(50).bfloat16())
    other = torch.nn.Parameter(weight.detach().float())
    ours, theirs = CpuAdam([weight], lr=0.1), torch.optim.Adam([other], lr=0.1)
    for _ in range(3):
        weight.grad = torch.randn(50).bfloat16()
        with torch.no_grad():
            other.copy_(weight)
        other.grad = weight.grad.float()
        ours.step()
        theirs.step()
        assert torch.equal(weight, other.bfloat16())
    assert set(ours.state[weight]) == {"mean", "square", "step"}
    assert ours.state[weight]["mean"].dtype is torch.float32


def test_operations_are_those_of_four_passes(offloading: Paper) -> None:
    cell = PaperCell("Qwen3 14B", "SuperOffload", "GH200")
    configuration = compose_cells(offloading, [cell])[cell]
    record = Record(configuration, "", Source.SIMULATED, Outcome.OK, metrics={"images_per_s": 2.0})
    found = operations_per_s(offloading, cell, record)
    of_weights = 2 * 4 * 2 * 14_768_307_200 * 4096
    assert found == pytest.approx(of_weights + 2 * 4 * 4 * 40 * 5120 * 4096**2)
    assert operations_per_s(offloading, cell, replace(record, outcome=Outcome.OUT_OF_MEMORY)) is None


@pytest.mark.slow
def test_the_largest_model_fills_host_memory(offloading: Paper) -> None:
    """With 12 bytes a weight: it, both averages, and its gradient until the update."""
    entry = offloading.models["Llama 2 70B, deeper"]
    small = {**entry, "set": {**entry["set"], "module": {**entry["set"]["module"], **SMALL}, "vocabulary": 64}}
    paper = replace(offloading, models={**offloading.models, "small": small})
    found = largest_model(paper, PaperCell("small", "MegaTrain, largest", "H200", 1))
    assert found["largest_parameters"] < 1.5e12 / 12
    assert found["largest_parameters"] > 0.1e12 / 12  # activations of narrow layers are large beside their weights
