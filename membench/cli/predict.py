"""Predict memory and time of a step on a device: does it fit, and how long does it take?

    membench predict model=resnet50 device=rtx4090 batch_size=64 precision=amp_bf16 optimizer=adamw
    membench predict model=vit_b_16 device=t4 batch_size=128 strategy=layrub_hybrid optimizer=sgd
    membench predict model=hf/llama-2-7b-hf device=a100_80gb serving=decode model.sequence_length=2048 batch_size=16 precision=bf16

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
    from membench.sweep.cell import Cell

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
    prediction = predictor.on(cell.simulated_device, cell.simulated_machine)
    values = [*_values(prediction), *_rates(cell, prediction)]
    lines = [_step(workload.name, cell, prediction), *(f"  {name:<20} {value}" for name, value in values)]
    print("\n".join(lines))
    return 0


def _step(name: str, cell: "Cell", prediction: "Prediction") -> str:
    """Return what was predicted."""
    update = "no optimizer" if cell.optimizer is None else cell.optimizer.name
    inside = "" if cell.machine is None else f" in machine {cell.machine.name}"
    parts = [
        name,
        f"batch {prediction.batch_size}",
        *([] if cell.precision is None else [str(cell.precision)]),
        *([] if cell.serving else [update]),
        f"predicted for {prediction.device}{inside}",
    ]
    return ", ".join(parts)


def _rates(cell: "Cell", prediction: "Prediction") -> Iterator[tuple[str, str]]:
    if cell.serving is None:
        yield "throughput", f"{prediction.samples_per_s:,.1f} samples/s"
        return
    tokens = cell.serving.tokens(prediction.batch_size, cell.model.sizes["sequence_length"])
    yield "throughput", f"{tokens / prediction.step_time_s:,.1f} tokens/s"
    cached_bytes = prediction.cache_bytes
    each = format_bytes(cached_bytes / prediction.batch_size)
    yield "cache", f"{format_bytes(cached_bytes)}, {each} for each sequence"


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
    if prediction.depends_on_values:
        yield "holds for", "this batch: sizes depend on its values"
    if prediction.priced_by_bytes:
        yield (
            "priced by bytes",
            f"{', '.join(prediction.priced_by_bytes)} (register_flop_formula adds operations)",
        )


def _exact(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"
