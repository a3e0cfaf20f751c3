"""Blocks of a network: which weights are gathered with them, and with which of them a stage begins."""

import pytest
import torch
from torch import nn

from membench.core.errors import MembenchError
from membench.steps.parallel.blocks import groups_of, repeated_classes, stage_begins

WIDTH = 16


class Block(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


with torch.device("meta"):
    NETWORK = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(6)), nn.Linear(WIDTH, 10))
CLASSES = frozenset({"Block"})


def test_a_class_is_repeated_of_which_a_list_has_several() -> None:
    assert repeated_classes(NETWORK) == {"Block", "Linear"}


def test_weights_outside_of_wrapped_modules_are_of_no_group() -> None:
    groups = groups_of(NETWORK, CLASSES)
    assert len(groups) == 6 and all(len(group) == 4 for group in groups)


@pytest.mark.parametrize(
    ("stages", "expected"), [(2, ["4"]), (3, ["3", "6"]), (4, ["2", "4", "6"]), (6, ["2", "3", "4", "5", "6"]), (1, [])]
)
def test_stages_have_as_many_blocks_where_what_is_around_them_counts_as_one_each(
    stages: int, expected: list[str]
) -> None:
    assert list(stage_begins(NETWORK, CLASSES, stages)) == expected


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(MembenchError, match=r"6 blocks \(Block\) cannot be divided into 7 stages"):
        stage_begins(NETWORK, CLASSES, 7)
