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

output=json, csv or markdown prints the same as values, as a row (with breakdown=true one for each operator), or as a
list.

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
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from membench.cli.assumptions import assumptions
from membench.cli.cluster_words import read_cluster
from membench.cli.command_line import compose_step, words_of_one_step
from membench.cli.operators import operator_elements
from membench.cli.words import FLAG, take_options
from membench.core.document import Element, Facts
from membench.core.errors import MembenchError
from membench.core.record import Configuration
from membench.core.result import Output, print_answer
from membench.core.units import format_bytes, format_seconds
from membench.steps.parallel.keywords import RankKeywords
from membench.sweep.composition import cell_configuration

if TYPE_CHECKING:
    from membench.steps.parallel.ranks import Ranks
    from membench.steps.predicted.breakdown import OperatorTime
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
        output: its form.
    """

    configuration: Annotated[Configuration, FLAG]
    ranks: Annotated[Mapping[str, Any], FLAG]
    nodes: int = 1
    breakdown: bool = False
    output: Output = Output.TEXT


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    own, words = words_of_one_step(words, "a prediction is of one step")
    options, words = take_options(words, Options)
    ranks, words = take_options(words, RankKeywords)
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    if "cluster" in given:
        _, device = read_cluster(given)
        words += [f"device={device}"] if device and "device" not in given else []
    elif of_several := [name for name in (*options, *ranks) if name not in ("accumulate", "breakdown", "output")]:
        raise MembenchError(f"{', '.join(of_several)}: name the cluster as well, as in cluster=dgx_h100")
    if not any(word.startswith("device=") for word in words):
        raise MembenchError("name the device, as in: membench predict model=resnet50 device=rtx4090")
    return Options(cell_configuration(compose_step("predict", words, own, _DEFAULTS)), ranks, **options)


@dataclass(frozen=True)
class Answer:
    """A prediction, and the operators of its step if they were asked for; what is printed, and what JSON has."""

    prediction: "Prediction"
    operators: "Sequence[OperatorTime]"
    elements: Sequence[Element]
    values: Mapping[str, Any]


def run(options: Options) -> int:
    """Print the prediction and return the exit code."""
    from membench.steps.predicted.text import rows

    found = answer(options)
    of_table = map(asdict, found.operators) if found.operators else rows(found.prediction)
    print_answer(options.output, found.elements, found.values, of_table)
    return 0


def answer(options: Options) -> Answer:
    """Return the prediction."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.steps.parallel.ranks import ranks_of
    from membench.steps.predict import Predictor
    from membench.steps.predicted.text import facts, headline, values
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(options.configuration)
    cluster = replace(cell.cluster, hosts=options.nodes)
    workload = cell.workload(cell.batch_size, is_kept=cluster.devices == 1)  # others divide the network itself
    ranks = ranks_of(workload.module, cluster, **options.ranks)
    predictor = Predictor(workload, cell.request(cell.method.strategy()), ranks)
    if options.breakdown:
        prediction, operators = predictor.broken_down(machine=cell.simulated_machine)
    else:
        prediction, operators = predictor.on(machine=cell.simulated_machine), ()
    pairs = [
        *facts(prediction),
        *_rates(cell, prediction),
        *(_of_ranks(ranks, prediction) if cluster.devices > 1 else ()),
        ("assumed", "; ".join(assumptions(workload, cell.optimizer, cluster.profile))),
    ]
    elements: list[Element] = [headline(prediction, *_words(cell)), Facts(tuple(pairs))]
    if operators:
        elements += ["", *operator_elements(operators, prediction.step_time_s)]
    return Answer(prediction, operators, elements, values(prediction) | _more(options, ranks, operators))


def _words(cell: "Cell") -> list[str]:
    """Return the update, the machine and the allocator, as the headline has them."""
    update = "no optimizer" if cell.optimizer is None else cell.optimizer.name
    inside = "" if cell.machine is None else f" in machine {cell.machine.name}"
    return ["" if cell.serving else update, inside, str(cell.cluster.profile.allocator)]


def _more(options: Options, ranks: "Ranks", operators: "Sequence[OperatorTime]") -> dict[str, Any]:
    """Return what JSON has besides the prediction."""
    gpus = ranks.mesh.cluster.devices
    several = {"gpus": gpus, "parallel": dict(ranks.mesh.axes)} if gpus > 1 else {}
    return several | ({"operators": [asdict(each) for each in operators]} if options.breakdown else {})


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
