"""Predict memory and time of a step on a device: does it fit, and how long does it take?

    membench predict model=resnet50 device=rtx4090 batch_size=64 precision=amp_bf16 optimizer=adamw
    membench predict model=vit_b_16 device=t4 batch_size=128 strategy=layrub_hybrid optimizer=sgd

Takes the options of `membench run`, --config-dir FOLDER included. The step is PyTorch's, by default plain (strategy=pytorch)
and without an optimizer. Nothing runs and nothing is allocated. Three sizes of memory: allocated by the step's tensors,
reserved for them by PyTorch's caching allocator, and used by the process as nvidia-smi shows.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hydra import compose

from membench.cli.command_line import MULTIRUN, check_arguments
from membench.cli.words import refuse_flags, take_config_dir
from membench.core.errors import MembenchError
from membench.core.record import Configuration
from membench.core.units import format_bytes, format_seconds
from membench.papers.cells import cell_configuration, hydra_composition

if TYPE_CHECKING:
    from membench.steps.predict import Prediction

_DEFAULTS = {"strategy": "pytorch", "framework": "pytorch"}


def parse(words: Sequence[str]) -> Configuration:
    """Return the configuration of the step to predict."""
    own, words = take_config_dir(words)
    if MULTIRUN & set(words):
        raise MembenchError("-m is not an option; a prediction is of one step")
    refuse_flags(words)
    given = {word.partition("=")[0] for word in words}
    if "device" not in given:
        raise MembenchError("name the device, as in: membench predict model=resnet50 device=rtx4090")
    for name in ("backend", "cluster", "framework", "micro_batch"):
        if name in given:
            raise MembenchError(f"{name} is not an option of predict; `membench run` simulates it")
    words = [*words, *(f"{name}={value}" for name, value in _DEFAULTS.items() if name not in given)]
    check_arguments(words, own)
    with hydra_composition(own):
        return cell_configuration(compose("config", words))


def run(configuration: Configuration) -> int:
    """Print the prediction and return the exit code."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.steps.predict import Predictor
    from membench.sweep.cell import Cell

    cell = Cell.from_configuration(configuration)
    workload, strategy = cell.workload(cell.batch_size), cell.method.strategy()
    predictor = Predictor(workload, strategy, cell.budget_bytes, cell.optimizer)
    print(_block(configuration, predictor.on(cell.simulated_device)))
    return 0


def _block(configuration: Configuration, prediction: "Prediction") -> str:
    """Return what was predicted, and the prediction, in a few aligned lines."""
    optimizer, precision = configuration.get("optimizer"), configuration.get("precision")
    step = [
        configuration["model"]["name"],
        f"batch {prediction.batch_size}",
        *([precision] if precision else []),
        optimizer["name"] if optimizer else "no optimizer",
        f"predicted for {prediction.device}",
    ]
    lines = [", ".join(step), *(f"  {name:<20} {value}" for name, value in _values(prediction))]
    return "\n".join(lines)


def _values(prediction: "Prediction") -> Iterator[tuple[str, str]]:
    capacity = format_bytes(prediction.capacity_bytes)
    yield "fits", f"yes, in {capacity}" if prediction.fits else f"no, not in {capacity}"
    yield "allocated", _exact(prediction.allocated_bytes)
    parts = sorted(prediction.parts_bytes.items(), key=lambda part: -part[1])
    yield "made up of", " + ".join(f"{format_bytes(size)} of {name}" for name, size in parts)
    yield "reserved", _exact(prediction.reserved_bytes)
    if prediction.used_bytes is None:
        yield "used", "not known: conf/device has no context_bytes for this device"
    else:
        yield "used", _exact(prediction.used_bytes)
    yield "step time", format_seconds(prediction.step_time_s)
    yield "throughput", f"{prediction.samples_per_s:,.1f} samples/s"
    if prediction.priced_by_bytes:
        yield (
            "priced by bytes",
            f"{', '.join(prediction.priced_by_bytes)} (register_flop_formula adds operations)",
        )


def _exact(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"
