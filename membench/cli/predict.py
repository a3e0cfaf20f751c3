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
computes and moves. Behind what the card shows and behind the step time stand the bounds between which 90 % of published
steps of this kind lie, relative to their predictions.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from membench.cli.assumptions import assumptions
from membench.cli.cluster_words import read_cluster
from membench.cli.command_line import compose_step, words_of_one_step
from membench.cli.operators import operator_lines
from membench.cli.words import FLAG, take_options
from membench.core.errors import MembenchError
from membench.core.record import Configuration
from membench.core.units import format_bytes, format_seconds
from membench.steps.parallel.keywords import RankKeywords
from membench.steps.predicted.intervals import chance_in_words, in_words
from membench.sweep.composition import cell_configuration

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
        ranks: `membench.steps.parallel.keywords.RankKeywords` that were given.
        nodes: hosts of the cluster.
        breakdown: print the time of each operator, too.
    """

    configuration: Annotated[Configuration, FLAG]
    ranks: Annotated[Mapping[str, Any], FLAG]
    nodes: int = 1
    breakdown: bool = False


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    own, words = words_of_one_step(words, "a prediction is of one step")
    options, words = take_options(words, Options)
    ranks, words = take_options(words, RankKeywords)
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    if "cluster" in given:
        _, device = read_cluster(given)
        words += [f"device={device}"] if device and "device" not in given else []
    elif of_several := [name for name in (*options, *ranks) if name not in ("accumulate", "breakdown")]:
        raise MembenchError(f"{', '.join(of_several)}: name the cluster as well, as in cluster=dgx_h100")
    if not any(word.startswith("device=") for word in words):
        raise MembenchError("name the device, as in: membench predict model=resnet50 device=rtx4090")
    return Options(cell_configuration(compose_step("predict", words, own, _DEFAULTS)), ranks, **options)


def run(options: Options) -> int:
    """Print the prediction and return the exit code."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.steps.parallel.ranks import ranks_of
    from membench.steps.predict import Predictor
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(options.configuration)
    workload, cluster = cell.workload(cell.batch_size), replace(cell.cluster, hosts=options.nodes)
    ranks = ranks_of(workload.module, cluster, **options.ranks)
    predictor = Predictor(workload, cell.request(cell.method.strategy()), ranks)
    table: Sequence[str] = ()
    if options.breakdown:
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
    from membench.steps.predicted.prediction import host_waits_in_words  # imports torch

    capacity, chance = format_bytes(prediction.capacity_bytes), chance_in_words(prediction.fit_probability)
    yield "fits", (f"yes, in {capacity}" if prediction.fits else f"no, not in {capacity}") + chance
    yield "allocated", _exact(prediction.allocated_bytes)
    parts = sorted(prediction.parts_bytes.items(), key=lambda part: -part[1])
    yield "made up of", " + ".join(f"{format_bytes(size)} of {name}" for name, size in parts)
    interval = f", {in_words(prediction.shown_interval_bytes, format_bytes)}"
    is_known = prediction.used_bytes is not None
    yield "reserved", _exact(prediction.reserved_bytes) + ("" if is_known else interval)
    if prediction.used_bytes is None:
        yield "used", "not known: conf/device has no context_bytes for this device"
    else:
        yield "used", _exact(prediction.used_bytes) + interval
    if prediction.host_bytes:
        yield "host memory", _exact(prediction.host_bytes)
    of_time = in_words(prediction.step_time_interval_s, format_seconds)
    yield "step time", f"{format_seconds(prediction.step_time_s)}, {of_time}"
    if waits := host_waits_in_words(prediction):
        yield "waits", waits
    if prediction.depends_on_values:
        yield "holds for", "this batch: sizes depend on its values"
    if prediction.priced_by_bytes:
        yield ("priced by bytes", f"{', '.join(prediction.priced_by_bytes)} (register_flop_formula adds operations)")
    for sentence in prediction.unpredicted:
        yield "not predicted", sentence


def _exact(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"
