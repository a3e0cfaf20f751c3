from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn


@pytest.fixture(scope="session")
def configured_model() -> Callable[[str], nn.Module]:
    """The network of conf/model/<name>.yaml on the meta device; built once, as the deepest take seconds."""

    @cache
    def build(name: str) -> nn.Module:
        configuration = OmegaConf.load(Path(__file__).parents[2] / "conf" / "model" / f"{name}.yaml")
        with torch.device("meta"):
            return instantiate(configuration.module)

    return build
