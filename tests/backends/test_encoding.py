"""Activations that are encoded and decoded by a real backend."""

import pytest
import torch

from membench.backends.cpu import Chaos, CpuBackend
from membench.codecs.rows import csr, vp_encoding
from membench.core.graph.codec import ActivationCodec, EncodingOverflow
from membench.core.graph.schedule import Schedule
from membench.execution.executor import execute
from membench.execution.measurement import cpu_peak_bytes
from membench.planning.encoding import add_encoded_forms
from tests.helpers.planning.toy import COLUMNS, ROWS, encoding, graph, value

FIRST, ENCODED = 1, 4


def encoded(codec: ActivationCodec, stream: str, density: float = 0.5) -> Schedule:
    """The first result is encoded; it is a ReLU's output."""
    toy, _ = add_encoded_forms(graph("aten.relu.default"), {FIRST: codec}, {FIRST: density})
    return encoding(toy, ENCODED, codec, stream)


def half_negative() -> torch.Tensor:
    numbers = torch.rand(ROWS, COLUMNS) + 0.1
    numbers[::2] *= -1
    return numbers


@pytest.mark.parametrize("chaos", [None, Chaos(seed=1)])
@pytest.mark.parametrize("stream", ["compute", "codec"])
@pytest.mark.parametrize("codec", [csr(), vp_encoding(values="fp32"), vp_encoding(values="fp10")], ids=str)
def test_an_activation_is_restored_from_its_encoded_form(
    codec: ActivationCodec, stream: str, chaos: Chaos | None
) -> None:
    schedule = encoded(codec, stream)
    backend = CpuBackend(schedule.graph, chaos=chaos)
    numbers = half_negative()
    backend.tensors.hold(0, numbers)
    execute(schedule, backend)
    once = numbers.relu()
    result = backend.tensors.tensor(value(3))
    error = (result - (once + once.exp())).abs()
    assert bool((error <= codec.rounding * once).all())
    backend.close()


@pytest.mark.parametrize("stream", ["compute", "codec"])
def test_the_measured_peak_is_the_predicted_one(stream: str) -> None:
    schedule = encoded(csr(), stream, density=1.0)  # more room than the data needs
    backend = CpuBackend(schedule.graph)
    backend.tensors.hold(0, half_negative())
    execute(schedule, backend)
    backend.tensors.release(3)
    peak_bytes = cpu_peak_bytes(lambda: execute(schedule, backend))
    assert schedule.graph.external_bytes + peak_bytes == schedule.peak_bytes
    backend.close()


@pytest.mark.parametrize("stream", ["compute", "codec"])
def test_more_data_than_was_planned_for_is_an_error(stream: str) -> None:
    schedule = encoded(vp_encoding(), stream, density=0.4)
    backend = CpuBackend(schedule.graph)
    backend.tensors.hold(0, half_negative())
    with pytest.raises(EncodingOverflow, match="a density above 0.4"):
        execute(schedule, backend)
    backend.close()
