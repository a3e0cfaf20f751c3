"""Which kernel computes attention.

The one that the profiler sees, beside the one that `membench.capture.operators.attention_kernels` names.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.operators.attention_kernels import AttentionCall, AttentionKernel, attention_kernel

OPERATORS = {
    "_scaled_dot_product_cudnn_attention": AttentionKernel.CUDNN,
    "_scaled_dot_product_flash_attention": AttentionKernel.FLASH,
    "_scaled_dot_product_efficient_attention": AttentionKernel.MEMORY_EFFICIENT,
    "_scaled_dot_product_attention_math": AttentionKernel.UNFUSED,
}
"""That torch calls for each kernel."""
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SWITCHES = {"all": None, "without cudnn": FUSED, "efficient or math": FUSED[1:], "math": FUSED[2:]}


@dataclass(frozen=True)
class Case:
    """One call: samples 2, and what differs."""

    heads: int = 8
    key_heads: int = 8
    queries: int = 128
    keys: int = 128
    size: int = 64
    dtype: str = "bfloat16"
    mask: str = ""
    dropout: float = 0.0
    is_causal: bool = False
    switches: str = "all"
    trains: bool = True
    is_transposed: bool = True

    @property
    def name(self) -> str:
        """What differs from the usual call."""
        usual = Case()
        own = {key: value for key, value in vars(self).items() if value != getattr(usual, key)}
        return "attention: " + (", ".join(f"{key}={value}" for key, value in own.items()) or "usual")


def cases() -> Iterator[Case]:
    """Yield the calls on which the choice depends."""
    for switches in SWITCHES:
        for dtype in ("bfloat16", "float16", "float32"):
            yield Case(dtype=dtype, switches=switches)
    yield from (Case(size=size) for size in (32, 60, 72, 80, 96, 128, 192, 224, 256, 320))
    yield from (Case(size=size, dtype="float32") for size in (60, 62, 128, 256))
    yield from (Case(size=size, trains=False) for size in (192, 256))
    for mask in ("bool", "float", "trained", "causal bool", "row", "batch"):
        yield Case(mask=mask)
    yield Case(mask="bool", dtype="float32")
    yield Case(is_causal=True)
    yield Case(is_causal=True, queries=64)
    yield from (Case(dropout=dropout) for dropout in (0.1, 0.125))
    yield Case(key_heads=2)
    yield Case(key_heads=2, dtype="float32")
    yield Case(key_heads=1)
    yield from (Case(queries=1, keys=keys, trains=False) for keys in (1, 128))
    yield Case(queries=37, keys=53)
    yield Case(queries=4096, keys=4096)
    yield Case(is_transposed=False)


def run(visit: Visit, rows: Rows) -> None:
    for case in cases():
        rows.measure(case.name, partial(_measured, case, visit.device))


def _measured(case: Case, device: torch.device) -> Values:
    if device.type != "cuda":
        raise NotRun("the choice between kernels is a GPU's")
    major, minor = torch.cuda.get_device_capability(device)
    return compared(case, device, AnyGpu(major + minor / 10))


def compared(case: Case, device: torch.device, gpu: AnyGpu) -> Values:
    """Return the kernel that runs on a device, and the one that is named for a GPU."""
    call = made(case, device)
    with _switched(case):
        found = names(call)
        predicted = attention_kernel(call, gpu).value
    operators = [name.removeprefix("aten::") for name in found if name.startswith("aten::_scaled_dot")]
    ran = next((OPERATORS[name].value for name in operators if name in OPERATORS), ", ".join(operators))
    kernels = [name for name in found if not name.startswith(("aten::", "cuda", "cu"))]
    return {"ran": ran, "predicted": predicted, "agrees": ran == predicted, "kernels": kernels[:12]}


def made(case: Case, device: torch.device) -> AttentionCall:
    """Return a case's call, in the layout of a network, whose heads come out of one dimension, or of its shapes."""
    dtype = getattr(torch, case.dtype)

    def tensor(heads: int, length: int) -> Tensor:
        shape = (2, length, heads, case.size) if case.is_transposed else (2, heads, length, case.size)
        drawn = torch.randn(shape, device=device, dtype=dtype, requires_grad=case.trains)
        return drawn.transpose(1, 2) if case.is_transposed else drawn

    query, key = tensor(case.heads, case.queries), tensor(case.key_heads, case.keys)
    value = tensor(case.key_heads, case.keys)
    mask = _mask(case, dtype, device)
    return AttentionCall(
        query, key, value, mask, case.dropout, case.is_causal, is_grouped=case.key_heads not in (1, case.heads)
    )  # fmt: skip


def _mask(case: Case, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    scores = (case.queries, case.keys)
    kinds: dict[str, Any] = {
        "": lambda: None,
        "bool": lambda: torch.ones(scores, dtype=torch.bool, device=device),
        "causal bool": lambda: torch.ones(scores, dtype=torch.bool, device=device).tril()[None, None],
        "float": lambda: torch.zeros(scores, dtype=dtype, device=device),
        "trained": lambda: torch.zeros(scores, dtype=dtype, device=device, requires_grad=True),
        "row": lambda: torch.zeros((2, 1, 1, case.keys), dtype=dtype, device=device),
        "batch": lambda: torch.zeros((2, *scores), dtype=dtype, device=device)[:, None],
    }
    mask: Tensor | None = kinds[case.mask]()
    return mask


def _switched(case: Case) -> AbstractContextManager[Any]:
    allowed = SWITCHES[case.switches]
    return nullcontext() if allowed is None else sdpa_kernel(allowed)


def names(call: AttentionCall) -> list[str]:
    """Return the names of operators and kernels of a call and its backward pass, in order, each once."""
    activities = [ProfilerActivity.CPU]
    if call.query.is_cuda:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        result = scaled_dot_product_attention(
            *call.tensors, call.mask, call.dropout, call.is_causal, enable_gqa=call.is_grouped
        )
        if call.has_gradient:
            result.sum().backward()
        if call.query.is_cuda:
            torch.cuda.synchronize()
    return list(dict.fromkeys(event.name for event in profiled.events()))
