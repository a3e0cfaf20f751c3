"""Llama under FSDP: sizes, and that neither checkpointing nor the way of turning changes the step."""

import pytest
import torch

import membench
from membench.core.configuration import ROOT, instantiate
from membench.lab.validation.dataset import load_dataset
from membench.models.llama import CHECKPOINTING, Llama, TokenLoss

SMALL = {"layers": 4, "width": 64, "heads": 4, "groups": 2, "inner": 96, "vocabulary": 128, "length": 32}
WEIGHTS = {  # of the checkpoints of Touvron et al. 2023, Grattafiori et al. 2024 and CodeLlama
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "7b": 6_738_415_616,
    "13b": 13_015_864_320,
    "34b": 33_743_970_304,
    "70b": 68_976_648_192,
}


@pytest.mark.parametrize("name", ["torchtitan", "torchtitan_a100", "fms_fsdp"])
def test_networks_have_the_sizes_that_their_names_say(name: str) -> None:
    rows = load_dataset(ROOT / "experiments" / "validation", name).rows
    described = {row.network: row.step["model"]["module"] for row in rows if not row.reason}
    for network, module in described.items():
        with torch.device("meta"):
            made = instantiate(module)
        assert sum(weight.numel() for weight in made.parameters()) == WEIGHTS[network]


def gradients(**options: str | bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    network = Llama(**SMALL, **options)
    tokens = torch.randint(128, (2, 32))
    TokenLoss()(network(tokens), tokens).backward()
    return [weight.grad for weight in network.parameters()]


@pytest.mark.parametrize("checkpointing", CHECKPOINTING[1:])
def test_checkpointing_changes_nothing(checkpointing: str) -> None:
    for gradient, other in zip(gradients(), gradients(checkpointing=checkpointing), strict=True):
        assert torch.equal(gradient, other)


def test_both_programs_turn_by_the_same_angles() -> None:
    for gradient, other in zip(gradients(), gradients(rotation="matrix"), strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.slow
def test_what_is_kept_orders_the_memory() -> None:
    found = {}
    for checkpointing in CHECKPOINTING:
        with torch.device("meta"):
            network = Llama(
                layers=4,
                width=1024,
                heads=8,
                groups=2,
                inner=3584,
                vocabulary=1024,
                length=4096,
                checkpointing=checkpointing,
            )
            tokens = torch.randint(1024, (1, 4096))
        predicted = membench.predict(network, TokenLoss(), (tokens, tokens), device="a100_80gb", precision="bf16")
        found[checkpointing] = predicted.allocated_bytes
    assert found["full"] < found["op"] < found["none"] and found["full"] < found["layer"] < found["none"]


def test_float8_leaves_the_head_and_the_sizes_as_they_are() -> None:
    pytest.importorskip("torchao")
    with torch.device("meta"):
        plain, network = Llama(**SMALL), Llama(**SMALL, float8=True)
    assert type(network.head) is torch.nn.Linear
    assert type(network.blocks[0].attention.query).__name__ == "Float8Linear"
    sizes = [weight.shape for weight in network.parameters()]
    assert sizes == [weight.shape for weight in plain.parameters()]
