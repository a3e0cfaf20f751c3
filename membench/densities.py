"""Densities of a model's maps, measured in one step: what strategies that compress plan with."""

from membench.backends.cpu import CpuBackend
from membench.backends.cuda import CudaBackend
from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import capture
from membench.codecs.meter import DensityMeter
from membench.cost.measured import MeasuredCost
from membench.module_state import left_as_it_was
from membench.schedule import COMPUTE_STREAM
from membench.strategies.compression import compress, encodable_maps
from membench.training_step import TrainingStep
from membench.workload import Workload


def measure_densities(workload: Workload) -> dict[int, float]:
    """Return the fraction of non-zeros of each map that can be encoded, in one step on the example batch.

    By the map's block, as `Epmc` takes it for its ``density``. Another batch, or another draw of dropout, may have fuller
    maps. Gradients, buffers and the random generator stay as they were.
    """
    return {block: meter.density for block, meter in _meters(workload).items()}


def likely_densities(workload: Workload) -> dict[int, float]:
    """Return the same with room for other draws of dropout on that batch (`DensityMeter`)."""
    return {block: meter.likely_density for block, meter in _meters(workload).items()}


def _meters(workload: Workload) -> dict[int, DensityMeter]:
    """Run a step with a meter on each map that can be encoded."""
    module = workload.module
    device = next(module.parameters()).device
    captured = capture(workload)
    graph = MeasuredCost(device).annotate(captured.graph)
    meters = {block: DensityMeter() for block in encodable_maps(graph)}
    schedule = compress("densities", graph, None, meters, 1.0, stream=COMPUTE_STREAM)
    backend: TensorBackend = (
        CudaBackend(schedule, device) if device.type == "cuda" else CpuBackend(schedule.graph)
    )
    step = TrainingStep(workload, captured, schedule, backend)
    with left_as_it_was(module, device):
        step(workload.inputs, workload.targets)
    step.close()
    return meters
