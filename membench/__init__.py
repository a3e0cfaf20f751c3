"""membench: memory-saving methods for deep learning, simulated and measured on one code base.

`compile` puts one step of a module under a method. Each package imports only itself and those above it:

core        task graph, schedule, device, record, and helpers without state
models      networks of the papers, a file for each family
data        data sets
capture     a module's step -> task graph
cost        seconds of a task by arithmetic (roofline)
codecs      encodings of activations
planning    what several methods share: schedule builder, validator, pools, recomputation
frameworks  task graphs as Caffe, MXNet, TensorFlow, Torch and moDNN run them
backends    schedule -> timeline: CPU, CUDA, simulated
execution   the loop that runs a schedule
strategies  the methods, a file or folder for each: task graph -> schedule
profiling   times measured on the device
steps       what `compile` and `predict` return
pictures    one step drawn: memory over time, Chrome trace
sweep       cells (model, method, device) run in processes, and their records
advice      whether a step fits a device, and the fastest method with which it does
conformance  what every strategy has to do, for the tests and for packages that add one
cli         the commands
lab         the laboratory, not in the wheel: papers, published measurements, training to accuracy, fits
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from membench.core.errors import (
    ExchangeFailed,
    InfeasibleSchedule,
    InvalidSchedule,
    MembenchError,
    MissingDataset,
    ModuleChanged,
    OutOfMemory,
    ShapeMismatch,
    StepOutdated,
    UnsupportedModel,
    UnsupportedStrategy,
)
from membench.core.hardware.device import DeviceProfile

if TYPE_CHECKING:
    from membench.advice.advise import advise
    from membench.advice.cluster.advice import ClusterAdvice
    from membench.advice.device.advice import Advice, AdvisedPlan
    from membench.core.hardware.machine import Machine
    from membench.core.step.optimizer import WeightUpdate
    from membench.models.serving import served_inputs
    from membench.pictures.observed_step import ObservedStep, timeline
    from membench.steps.compile import compile  # noqa: A004 (the field's word for it)
    from membench.steps.measurement import StepMeasurement
    from membench.steps.parallel.pipelined_step import Pipelined
    from membench.steps.predict import predict
    from membench.steps.predicted.prediction import Prediction
    from membench.steps.real.buckets import pad_to_bucket
    from membench.steps.real.compiled_step import CompiledStep
    from membench.steps.real.micro_batched_step import MicroBatchedStep
    from membench.steps.real.shaped_step import ShapedStep
    from membench.steps.simulated_step import SimulatedStep
    from membench.steps.wrap import wrap
    from membench.sweep.results.tables import records

__version__ = "0.1.0"
__all__ = [
    "Advice",
    "AdvisedPlan",
    "ClusterAdvice",
    "CompiledStep",
    "DeviceProfile",
    "ExchangeFailed",
    "InfeasibleSchedule",
    "InvalidSchedule",
    "Machine",
    "MembenchError",
    "MicroBatchedStep",
    "MissingDataset",
    "ModuleChanged",
    "ObservedStep",
    "OutOfMemory",
    "Pipelined",
    "Prediction",
    "ShapeMismatch",
    "ShapedStep",
    "SimulatedStep",
    "StepMeasurement",
    "StepOutdated",
    "UnsupportedModel",
    "UnsupportedStrategy",
    "WeightUpdate",
    "__version__",
    "advise",
    "compile",
    "pad_to_bucket",
    "predict",
    "records",
    "served_inputs",
    "timeline",
    "wrap",
]

_LAZY = {
    "Advice": "membench.advice.device.advice",
    "AdvisedPlan": "membench.advice.device.advice",
    "ClusterAdvice": "membench.advice.cluster.advice",
    "CompiledStep": "membench.steps.real.compiled_step",
    "Machine": "membench.core.hardware.machine",
    "MicroBatchedStep": "membench.steps.real.micro_batched_step",
    "ObservedStep": "membench.pictures.observed_step",
    "Pipelined": "membench.steps.parallel.pipelined_step",
    "Prediction": "membench.steps.predicted.prediction",
    "ShapedStep": "membench.steps.real.shaped_step",
    "SimulatedStep": "membench.steps.simulated_step",
    "WeightUpdate": "membench.core.step.optimizer",
    "StepMeasurement": "membench.steps.measurement",
    "advise": "membench.advice.advise",
    "compile": "membench.steps.compile",
    "pad_to_bucket": "membench.steps.real.buckets",
    "predict": "membench.steps.predict",
    "records": "membench.sweep.results.tables",
    "served_inputs": "membench.models.serving",
    "timeline": "membench.pictures.observed_step",
    "wrap": "membench.steps.wrap",
}
"""Imported on first use: they need torch, which takes seconds, and reports and figures do not."""

if not TYPE_CHECKING:  # for a type checker, any other name is an error

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LAZY[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LAZY})
