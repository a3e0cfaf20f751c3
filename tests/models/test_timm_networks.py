"""Networks of timm."""

import sys
from typing import Any

import pytest
import torch

from membench.core.errors import MembenchError
from membench.models.timm_networks import network, options_of
from membench.sweep.cells.model import Model

PUBLISHED = {"vit_small_patch16_224": 22_050_664, "resnet50": 25_557_032, "efficientnet_b0": 5_288_548}
"""Parameters as timm publishes them."""


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("architecture", PUBLISHED)
def test_a_network_has_the_published_parameters(architecture: str) -> None:
    work = Model.from_configuration(options_of(architecture)).workload(2, seed=0, device="meta")
    assert work.module.training
    assert sum(weight.numel() for weight in work.module.parameters()) == PUBLISHED[architecture]
    assert work.output().shape == (2, 1000)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["resnet5O", "hf_hub:timm/resnet50", "local-dir:/tmp"])
def test_what_timm_would_look_for_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(MembenchError, match="timm .* has no network"):
        network(name)


def test_options_reach_the_network() -> None:
    with torch.device("meta"):
        module: Any = network("resnet18", num_classes=7)
    assert module.fc.out_features == 7


def test_without_timm_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MembenchError, match=r"pip install 'membench\[zoo\]'"):
        network("resnet50")
