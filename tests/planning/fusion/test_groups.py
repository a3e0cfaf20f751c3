"""The groups of fusion against those of the installed Inductor when `torch.compile` compiles the same network."""

import copy
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from membench.capture.capture import capture
from membench.conformance.networks import workload_of
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.step.workload import Workload
from membench.planning.fusion.graph import fused
from tests.helpers.devices import DEVICE
from tests.helpers.kernels.compiler import with_compiler
from tests.helpers.networks.rotations import rotations

SHARES = {"resnet18": 0.9, "densenet": 0.9, "mobilenet_v3": 0.9, "vit": 0.5}
"""Of a network's groups that Inductor makes as well, at least."""
LOOPS = {
    "add", "mul", "relu", "hardswish", "hardsigmoid", "mean", "sum", "threshold_backward", "hardswish_backward",
    "hardsigmoid_backward", "native_batch_norm", "native_batch_norm_backward", "native_layer_norm",
    "native_layer_norm_backward", "native_dropout_backward", "gelu_backward", "_log_softmax", "nll_loss_forward",
    "_log_softmax_backward_data", "nll_loss_backward",
}  # fmt: skip
"""Operators by which groups are compared. Views and copies are in Inductor's names wherever it keeps one."""
OF_ROTATIONS = LOOPS | {"sub", "neg", "select_backward", "slice_backward"}

Group = frozenset[str]


def compared(names: Iterable[str], loops: Collection[str] = LOOPS) -> Group:
    """Return a kernel's operators; in the backward pass without the forward pass's that run again.

    Inductor names a constant after the first operator that has it: zeros after a loss. A kernel of the forward pass may
    make the mask of a ReLU's gradient as well.
    """
    plain = {name.replace("_native_batch_norm_legit_functional", "native_batch_norm") for name in names}
    plain = {name.removesuffix("_") for name in plain}.intersection(loops)
    if "_log_softmax_backward_data" not in plain:
        plain.discard("nll_loss_backward")
    backward = {name for name in plain if "backward" in name}
    if backward - {"threshold_backward"} or (backward and "relu" not in plain):
        return frozenset(backward | (plain & {"add"}))
    return frozenset(plain - backward)


def groups_of(work: Workload, loops: Collection[str] = LOOPS, *, on_cpu: bool = True) -> list[Group]:
    programs = (fused_calls_of(task.call) for task in fused(capture(work).graph, on_cpu=on_cpu).tasks)
    found = [compared((call.operator.split(".")[1] for call in each.calls), loops) for each in programs if each]
    return [group for group in found if len(group) > 1]


def inductors_groups(work: Workload, loops: Collection[str] = LOOPS, *, on_cpu: bool = True) -> set[Group]:
    """Return the operators of each kind of kernel that Inductor writes; the kernels are not built, and do nothing.

    Args:
        on_cpu: parts are written one by one, else concatenations compute each element, as on a GPU.
    """
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen import cpp
    from torch._inductor.utils import aggregate_origins

    found: list[list[str]] = []
    named = cpp.get_fused_kernel_name

    def record(nodes: Any, names: Any) -> str:
        originals = [origin.meta.get("original_aten") for origin in aggregate_origins(nodes)]
        found.append([each._overloadpacket.__name__ for each in originals if each is not None])
        return named(nodes, names)

    module = copy.deepcopy(work.module)
    with (
        with_compiler(),
        patch.object(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None),
        patch.object(AsyncCompile, "wait", lambda *_: None),
        patch.object(cpp, "get_fused_kernel_name", record),
        config.patch(fx_graph_cache=False, fallback_random=True, force_pointwise_cat=not on_cpu),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        torch._dynamo.reset()
        step = torch.compile(lambda *inputs: work.loss(module(*inputs), *work.targets))
        step(*work.inputs).backward()
        torch._dynamo.reset()
    return {compared(names, loops) for names in found}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHARES)
def test_most_groups_are_inductors(name: str) -> None:
    work = workload_of(name, DEVICE)
    ours, theirs = groups_of(work), inductors_groups(work)
    share = sum(group in theirs for group in ours) / len(ours)
    others = Counter(group for group in ours if group not in theirs)
    print(f"{name}: {share:.2f} of {len(ours)} groups")
    assert share >= SHARES[name], others


@pytest.mark.exhaustive
@pytest.mark.parametrize(("of_halves", "on_cpu"), [(False, True), (False, False), (True, False)])
def test_rotations_are_inductors_groups(of_halves: bool, on_cpu: bool) -> None:
    """On the CPU the loops that write the parts of a concatenation are in Inductor's kernel of what reads it."""
    loops = OF_ROTATIONS if on_cpu else OF_ROTATIONS | {"cat", "stack"}
    work = rotations(of_halves=of_halves)
    ours, theirs = (found(work, loops, on_cpu=on_cpu) for found in (groups_of, inductors_groups))
    assert ours and theirs.issuperset(ours), theirs
