"""What all threads of a process share of torch, and a capture changes while it lasts."""

import gc
import logging
import warnings
from typing import Any

import torch
from torch.distributions import Distribution
from torch.nn.attention import flex_attention
from torch.utils import checkpoint

from membench.core.libraries.torch_internals import FAKE_TENSOR_LOGGER, HOOKS_OF_EVERY_MODULE

_OWNERS = (
    *(torch, torch.random, torch.cuda, torch.autograd, torch.autocast, torch.cuda.amp.common),
    *(checkpoint, checkpoint.CheckpointFunction, Distribution, flex_attention),
    torch.autograd.graph.save_on_cpu,
)


def shared_state() -> dict[Any, Any]:
    """Return it, to be compared with a later one."""
    found: dict[Any, Any] = {
        (owner.__name__, name): id(value) for owner in _OWNERS for name, value in vars(owner).items()
    }
    found |= {("hooks", at): dict(hooks) for at, hooks in enumerate(HOOKS_OF_EVERY_MODULE)}
    found |= {
        "class": type(torch),
        "collects": gc.isenabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "level": logging.getLogger(FAKE_TENSOR_LOGGER).level,
        "filters": list(warnings.filters),
    }
    return found
