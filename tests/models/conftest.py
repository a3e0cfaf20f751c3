from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

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


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that opens a connection."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a connection is opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
