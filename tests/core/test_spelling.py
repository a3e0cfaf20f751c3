"""Words of torch, Lightning and transformers are read as membench's names."""

import pytest

from membench.core import configuration
from membench.core.graph.precision import Precision
from membench.core.spelling import PRECISIONS, name_in, options_in


@pytest.mark.parametrize("word", [*PRECISIONS, *(f"torch.{name}" for name in ("float32", "bfloat16", "half")), "BF16"])
def test_a_precision_has_many_names(word: str) -> None:
    assert Precision.of_step(word) is Precision.of_step(PRECISIONS.get(word.removeprefix("torch."), word.lower()))


def test_a_number_of_bits_is_lightnings() -> None:
    assert Precision.of_step(32) is Precision.FP32
    assert Precision.of_step(16) is Precision.AMP_FP16


@pytest.mark.parametrize(
    ("group", "word", "name"),
    [
        ("optimizer", "AdamW", "adamw"),
        ("optimizer", "torch.optim.SGD", "sgd"),
        ("optimizer", "bitsandbytes.optim.PagedAdamW8bit", "paged_adamw8bit"),
        ("optimizer", "adamw_bnb_8bit", "adamw8bit"),
        ("optimizer", "adamz", "adamz"),
        ("model", "ResNet-50", "resnet50"),
        ("device", "RTX 4090", "rtx4090"),
        ("model", "resnet", "resnet"),
        ("model", "--", "--"),
    ],
)
def test_a_name_is_read_in_any_case_and_with_any_separators(group: str, word: str, name: str) -> None:
    assert name_in(group, word, configuration.names(group)) == name


def test_no_two_names_of_a_group_are_alike() -> None:
    """Otherwise a word in another case would not be read."""
    for folder in (path for path in configuration.CONF_DIRECTORY.iterdir() if path.is_dir()):
        known = configuration.names(folder.name)
        assert [name_in(folder.name, name.upper(), known) for name in known if name.isascii()] == known


def test_transformers_default_optimizer_is_a_fused_one() -> None:
    assert options_in("optimizer", "adamw_torch_fused") == {"fused": True}
    assert configuration.read("optimizer", "adamw_torch_fused") == configuration.read("optimizer", "adamw") | {
        "fused": True
    }
