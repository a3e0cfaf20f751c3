"""Densities of a model's activations, measured in one step, with which strategies that compress can plan."""

from membench.backends.real import real_backend
from membench.capture.capture import capture
from membench.capture.state.module_state import preserve_state
from membench.codecs.meter import DensityMeter
from membench.core.graph.schedule import COMPUTE_STREAM
from membench.core.step.workload import Workload
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.real.compiled_step import CompiledStep
from membench.strategies.compression import compress, encodable_activations


def likely_densities(workload: Workload) -> dict[int, float]:
    """Return the fraction of non-zeros of each activation that can be encoded, with room for other draws of dropout.

    By the activation's block, as `Epmc` takes it for its ``density``, measured in one step on the example batch. The
    step's schedule holds a `DensityMeter` as codec of each activation, which accumulates its density; no other codec
    has state. Another batch may have higher densities. Gradients, buffers and the random generator are restored.
    """
    module = workload.module
    device = next(module.parameters()).device
    captured = capture(workload)
    graph = MeasuredCost(device).annotate(captured.graph)
    meters = {block: DensityMeter() for block in encodable_activations(graph)}
    schedule = compress("densities", graph, None, meters, 1.0, stream=COMPUTE_STREAM)
    step = CompiledStep(workload, captured, schedule, real_backend(schedule, device))
    with preserve_state(module, device):
        step(workload.inputs, workload.targets)
    step.close()
    return {block: meter.likely_density for block, meter in meters.items()}
