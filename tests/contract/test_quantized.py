"""Networks with quantized weights: a step gives the bits of PyTorch, at its predicted peak."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from membench.core.workload import Workload
from membench.steps.plan import plan
from membench.strategies.base import strategies
from tests.helpers.checks import check_results_and_peak
from tests.helpers.networks import COST, as_run, reference_of

bitsandbytes = pytest.importorskip("bitsandbytes")
CLASSES = 3


def of_4_bits(
    quant_type: str, *, nested: bool, dtype: torch.dtype = torch.float32, storage: torch.dtype = torch.uint8
) -> nn.Module:
    def layer(inputs: int, outputs: int, *, bias: bool) -> nn.Module:
        made = bitsandbytes.nn.Linear4bit(
            inputs,
            outputs,
            bias=bias,
            compute_dtype=dtype,
            compress_statistics=nested,
            quant_type=quant_type,
            quant_storage=storage,
        )
        return made.requires_grad_(False).to(dtype)

    return _between_trained(layer(64, 96, bias=True), layer(96, 64, bias=False), dtype)


def of_8_bits(dtype: torch.dtype = torch.float32) -> nn.Module:
    def layer(inputs: int, outputs: int, *, bias: bool) -> nn.Module:
        made = bitsandbytes.nn.Linear8bitLt(inputs, outputs, bias=bias, has_fp16_weights=False, threshold=6.0)
        return made.requires_grad_(False)

    return _between_trained(layer(64, 96, bias=True), layer(96, 64, bias=False), dtype)


def _between_trained(first: nn.Module, second: nn.Module, dtype: torch.dtype) -> nn.Module:
    layers = nn.Linear(16, 64), first, nn.ReLU(), second, nn.Dropout(0.2), nn.Linear(64, CLASSES)
    return nn.Sequential(*layers).to(dtype).to("cpu")  # the move quantizes


MODULES: dict[str, Callable[[], nn.Module]] = {
    "nf4": lambda: of_4_bits("nf4", nested=False),
    "nf4, nested": lambda: of_4_bits("nf4", nested=True),
    "fp4": lambda: of_4_bits("fp4", nested=False),
    "fp4, nested, bf16": lambda: of_4_bits("fp4", nested=True, dtype=torch.bfloat16),
    "nf4, bf16": lambda: of_4_bits("nf4", nested=False, dtype=torch.bfloat16),
    "nf4, bf16 storage": lambda: of_4_bits("nf4", nested=False, storage=torch.bfloat16),
    "int8": of_8_bits,
    "int8, bf16": lambda: of_8_bits(torch.bfloat16),
}


def workload_of(module: nn.Module) -> Workload:
    dtype = next(module.parameters()).dtype
    inputs, targets = torch.randn(5, 16, dtype=dtype), torch.randint(CLASSES, (5,))
    return Workload("quantized", module, functional.cross_entropy, (inputs,), (targets,))


@pytest.mark.parametrize("name", MODULES)
def test_a_step_on_quantized_weights_is_exact(name: str) -> None:
    torch.manual_seed(0)
    case = as_run(reference_of(workload_of(MODULES[name]())))
    for strategy in ("pytorch", "joint"):
        check_results_and_peak(case, plan(case.captured.graph, strategies()[strategy](), COST, None))
