"""Predict memory and time of a step on a device: does it fit, and how long does it take?

    membench predict model=resnet50 device=rtx4090 batch_size=64 precision=amp_bf16 optimizer=adamw
    membench predict model=vit_b_16 device=t4 batch_size=128 strategy=layrub_hybrid optimizer=sgd
    membench predict model=hf/llama-2-7b-hf device=a100_80gb serving=decode model.sequence_length=2048 precision=bf16
    membench predict model=vit_b_16 device=a100_80gb batch_size=128 precision=amp_bf16 optimizer=adamw kernels=inductor
    membench predict model=resnet50 device=t4 batch_size=64 accumulate=4 optimizer=adamw
    membench predict model=llama_7b cluster=dgx_h100 nodes=2 parallel='{fsdp: 16}' precision=bf16 optimizer=adamw

Takes the options of `membench run`, --config-dir FOLDER included. The step is PyTorch's, by default plain
(strategy=pytorch) and without an optimizer; kernels=inductor predicts it as torch.compile runs it. Nothing runs and
nothing is allocated. Three sizes of memory: allocated by the step's tensors, reserved for them by PyTorch's caching
allocator, and used by the process as nvidia-smi shows. breakdown=true adds the time of each operator, with what it
computes and moves.

accumulate=4 is a step of as many micro-batches of batch_size samples each.

Of several GPUs (cluster=dgx_a100_40gb ...) one rank is predicted, as all are alike; batch_size is its own. In addition:

    nodes=1                     hosts of the cluster; device= is the cluster's
    parallel='{fsdp: 8}'        GPUs over which weights are sharded as by fully_shard; dp: replicas of these shards; tp:
                                tensor parallelism, by the model's own plan; cp: context parallelism, parts of the same
                                sequences; ep: parts of the experts
    wrapped=BlockA,BlockB       classes whose modules are gathered one by one; by default those that a list of modules
                                has several of
    reshard_after_forward=true  gathered weights are given back after the forward pass, and gathered again
    reduce_dtype=bf16           in which gradients are added up; by default that in which they are computed
    partition_optimizer=true    replicas (dp without fsdp) divide the update and its states, as torch's
                                ZeroRedundancyOptimizer
    pipeline=1F1B               order of micro-batches where parallel has pp, ranks of a pipeline; or GPipe,
                                Interleaved1F1B, InterleavedZeroBubble
    stages=4                    of the pipeline; by default one on each GPU, two with Interleaved1F1B
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml
from hydra import compose

from membench.cli.assumptions import assumptions
from membench.cli.cluster_words import read_cluster
from membench.cli.command_line import MULTIRUN, check_arguments
from membench.cli.operators import operator_lines
from membench.cli.words import (
    Reader,
    each,
    read_count,
    read_switch,
    refuse_flags,
    refuse_options,
    take_config_dir,
    take_options,
    with_own_model,
)
from membench.core.checks import COUNT, choice
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.record import Configuration
from membench.core.step.pipeline import PipelineSchedule
from membench.core.units import format_bytes, format_seconds
from membench.sweep.composition import cell_configuration, hydra_composition

if TYPE_CHECKING:
    from membench.steps.parallel.ranks import Ranks
    from membench.steps.predicted.prediction import Prediction
    from membench.sweep.cells.cell import Cell

_DEFAULTS = {"strategy": "pytorch", "framework": "pytorch"}


@dataclass(frozen=True)
class Options:
    """What to predict.

    Attributes:
        configuration: configuration of one GPU's step.
        ranks: options of `ranks_of`.
        nodes: hosts of the cluster.
        breakdown: print the time of each operator, too.
    """

    configuration: Configuration
    ranks: Mapping[str, Any]
    nodes: int = 1
    breakdown: bool = False


def parse(words: Sequence[str]) -> Options:
    """Return the settings that the words are."""
    own, words = take_config_dir(words)
    if MULTIRUN & set(words):
        raise MembenchError("-m is not an option; a prediction is of one step")
    refuse_flags(words)
    own_options, words = take_options(words, {"breakdown": partial(read_switch, "breakdown")})
    ranks, words = _take_ranks(with_own_model(words))
    if "nodes" in ranks:
        own_options["nodes"] = ranks.pop("nodes")
    given = {word.partition("=")[0] for word in words}
    if "device" not in given:
        raise MembenchError("name the device, as in: membench predict model=resnet50 device=rtx4090")
    refuse_options(given, "predict")
    words = [*words, *(f"{name}={value}" for name, value in _DEFAULTS.items() if name not in given)]
    check_arguments(words, own)
    with hydra_composition(own):
        return Options(cell_configuration(compose("config", words)), ranks, **own_options)


def _take_ranks(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of ranks, and the other words with the cluster's device."""
    readers: dict[str, Reader] = {
        "nodes": partial(read_count, "nodes"),
        "parallel": read_parallel,
        "accumulate": partial(read_count, "accumulate"),
        "wrapped": each(str),
        "reshard_after_forward": partial(read_switch, "reshard_after_forward"),
        "reduce_dtype": lambda text: Precision.of_step(text).dtype,
        "partition_optimizer": partial(read_switch, "partition_optimizer"),
        "pipeline": partial(choice, PipelineSchedule, "pipeline"),
        "stages": partial(read_count, "stages"),
    }
    ranks, others = take_options(words, readers)
    chosen = {word.partition("=")[0]: word.partition("=")[2] for word in others}
    if "cluster" not in chosen:
        if of_several := [name for name in ranks if name != "accumulate"]:
            raise MembenchError(f"{', '.join(of_several)}: name the cluster as well, as in cluster=dgx_h100")
        return ranks, others
    _, device = read_cluster(chosen)
    return ranks, [*others, *([f"device={device}"] if device and "device" not in chosen else [])]


def read_parallel(text: str) -> dict[str, int]:
    """Return the sizes of axes in ``{fsdp: 8}``."""
    try:
        found = yaml.safe_load(re.sub(r"(\w):(?=\S)", r"\1: ", text))  # {fsdp:8} is a name to YAML
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(axis, str) and COUNT.holds(size) for axis, size in found.items()
    ):
        raise MembenchError(f"parallel is numbers of GPUs by axis, such as '{{fsdp: 8}}', not {text!r}")
    return found


def run(settings: Options) -> int:
    """Print the prediction and return the exit code."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.steps.parallel.ranks import ranks_of
    from membench.steps.predict import Predictor
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(settings.configuration)
    workload, cluster = cell.workload(cell.batch_size), replace(cell.cluster, hosts=settings.nodes)
    ranks = ranks_of(workload.module, cluster, **settings.ranks)
    predictor = Predictor(workload, cell.request(cell.method.strategy()), ranks)
    table: Sequence[str] = ()
    if settings.breakdown:
        prediction, operators = predictor.broken_down(machine=cell.simulated_machine)
        table = ["", *operator_lines(operators, prediction.step_time_s)]
    else:
        prediction = predictor.on(machine=cell.simulated_machine)
    values = [
        *_values(prediction),
        *_rates(cell, prediction),
        *(_of_ranks(ranks, prediction) if cluster.devices > 1 else ()),
        ("assumed", "; ".join(assumptions(workload, cell.optimizer, cluster.profile))),
    ]
    lines = [_step(workload.name, cell, prediction), *(f"  {name:<20} {value}" for name, value in values)]
    print("\n".join([*lines, *table]))
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
        *filter(None, [str(cell.cluster.profile.allocator)]),
    ]
    return ", ".join(parts)


def _rates(cell: "Cell", prediction: "Prediction") -> Iterator[tuple[str, str]]:
    if cell.serving is None:
        length = cell.model.sizes.get("sequence_length")
        tokens = "" if length is None else f", {prediction.samples_per_s * length:,.0f} tokens/s"
        yield "throughput", f"{prediction.samples_per_s:,.1f} samples/s{tokens}"
        return
    served = cell.serving.tokens(prediction.batch_size, cell.model.sizes["sequence_length"])
    yield "throughput", f"{served / prediction.step_time_s:,.1f} tokens/s"
    cached_bytes = prediction.cache_bytes
    each = format_bytes(cached_bytes / prediction.batch_size)
    yield "cache", f"{format_bytes(cached_bytes)}, {each} for each sequence"


def _of_ranks(ranks: "Ranks", prediction: "Prediction") -> Iterator[tuple[str, str]]:
    gpus = ranks.mesh.cluster.devices
    axes = ", ".join(f"{axis} {size}" for axis, size in ranks.mesh.axes)
    which = "the one with the greatest memory" if prediction.stages else "each of them"
    yield "GPUs", f"{gpus}, {axes}; memory and time are those of {which}"
    yield "samples of all", f"{prediction.samples_per_s * ranks.data_parallel:,.1f} samples/s"
    yield (
        "communication",
        f"{format_seconds(prediction.exposed_communication_s)} of a step not hidden behind computation",
    )
    yield "utilization", f"{prediction.utilization:.1%} of the GPUs' rate of products (MFU)"
    for number, stage in enumerate(prediction.stages):
        idle = format_seconds(stage.exposed_communication_s)
        yield (f"pipeline rank {number}", f"{format_bytes(stage.reserved_bytes)} reserved, waits {idle} for others")


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
    if prediction.host_bytes:
        yield "host memory", _exact(prediction.host_bytes)
    yield "step time", format_seconds(prediction.step_time_s)
    if prediction.depends_on_values:
        yield "holds for", "this batch: sizes depend on its values"
    if prediction.priced_by_bytes:
        yield ("priced by bytes", f"{', '.join(prediction.priced_by_bytes)} (register_flop_formula adds operations)")
    for sentence in prediction.unpredicted:
        yield "not predicted", sentence


def _exact(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"
