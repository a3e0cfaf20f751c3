"""A predicted memory history is one that PyTorch's own tools read."""

import pickle
import pickletools
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.cuda import _memory_viz

import membench
from membench.pictures.observed_step import ObservedStep
from membench.pictures.saved import save_timeline
from membench.pictures.snapshot import snapshot

READ_BY_MEMORY_VIZ = {
    "APPEND", "APPENDS", "BINGET", "BINFLOAT", "BININT", "BININT1", "BININT2", "BINUNICODE", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE",
    "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip
"""Opcodes of pickle that torch/utils/viz/MemoryViz.js knows."""


def _observed(**options: Any) -> ObservedStep:
    with torch.device("meta"):
        module = torchvision.models.resnet18()
        batch = torch.empty(8, 3, 64, 64), torch.empty(8, dtype=torch.int64)
    step = membench.compile(
        module, torch.nn.functional.cross_entropy, batch, backend="simulated", device="rtx3090", **options
    )
    return membench.timeline(step.measure(), "resnet18")


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "pytorch", "optimizer": "adamw"},
        {"strategy": "layrub_hybrid"},
        {"strategy": "pytorch", "micro_batch": 2},
        {"strategy": "modnn"},
    ],
)
def test_its_events_add_up_to_the_predicted_peak(options: dict[str, Any]) -> None:
    observed = _observed(**options)
    [events] = snapshot(observed)["device_traces"]
    signs = {"alloc": 1, "free_completed": -1}
    held = accumulate(signs.get(event["action"], 0) * event["size"] for event in events)
    assert max(held) == observed.peak_bytes
    times = [event["time_us"] for event in events]
    assert times == sorted(times) and times[-1] <= observed.step_time_s * 1e6 + 1


def test_pytorchs_tools_read_it(tmp_path: Path) -> None:
    *_, path = save_timeline(_observed(strategy="pytorch"), tmp_path / "resnet18")
    assert {code.name for code, _, _ in pickletools.genops(path.read_bytes())} <= READ_BY_MEMORY_VIZ
    found = pickle.loads(path.read_bytes())
    assert "add_local_files" in _memory_viz.trace_plot(found)
    assert "total_reserved" in _memory_viz.segsum(found)
    assert "alloc" in str(found["device_traces"][0][1]) and _memory_viz.trace(found)
    for segment in found["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
