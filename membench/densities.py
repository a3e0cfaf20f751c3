"""Densities of a model's maps, measured in one step: what strategies that compress plan with."""

from membench.capture.capture import capture
from membench.codecs.meter import DensityMeter
from membench.cost.measured import MeasuredCost
from membench.module_state import left_as_it_was
from membench.schedule import COMPUTE_STREAM
from membench.step import real_backend
from membench.strategies.compression import compress, encodable_maps
from membench.training_step import TrainingStep
from membench.workload import Workload


def likely_densities(workload: Workload) -> dict[int, float]:
    """Return the fraction of non-zeros of each map that can be encoded, with room for other draws of dropout.

    By the map's block, as `Epmc` takes it for its ``density``, measured in one step on the example batch (`DensityMeter`).
    Another batch may have fuller maps. Gradients, buffers and the random generator stay as they were.
    """
    module = workload.module
    device = next(module.parameters()).device
    captured = capture(workload)
    graph = MeasuredCost(device).annotate(captured.graph)
    meters = {block: DensityMeter() for block in encodable_maps(graph)}
    schedule = compress("densities", graph, None, meters, 1.0, stream=COMPUTE_STREAM)
    step = TrainingStep(workload, captured, schedule, real_backend(schedule, device))
    with left_as_it_was(module, device):
        step(workload.inputs, workload.targets)
    step.close()
    return {block: meter.likely_density for block, meter in meters.items()}
