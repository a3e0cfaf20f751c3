"""Advise on a step: does it fit a device, how large may its batch be, and which method is the fastest that fits?

    membench advise model=resnet50 device=rtx3090 batch_size=256 precision=amp_fp16 optimizer=adamw
    membench advise model=resnet50 device=rtx3090 batch_size=256 budget=5GB output=json
    membench advise model=hf/gpt2 device=this batch_size=16 precision=amp_bf16 optimizer=adamw

Takes the options of `membench run` that describe the step, --config-dir FOLDER included; device=this is the GPU at
hand, and kernels=inductor the step as torch.compile runs it. In addition:

    methods=a,b      or all; by default all where plain PyTorch does not fit, otherwise it alone
    largest=all      the largest batch of each method; or plain: of plain PyTorch alone; none
    output=text      or json, csv (a row for each plan), markdown; html writes a page,
                     outputs/advice/<model>_<device>.html
    levers=true      what would make a step fit that plain PyTorch has no room for, or faster; or false
    processes=2      that plan; by default one for each processor
    time_limit=6     seconds for a step that plain PyTorch has no room for; or none
    tracking=offline, online    logs the table, the page and the figures to W&B

On several GPUs (cluster=dgx_h100 ...) it searches for the fastest combination of parallelism, checkpointing and
micro-batch:

    membench advise model=llama_70b cluster=dgx_h100 nodes=8
    membench advise model=llama_70b cluster=dgx_h100 nodes=8 batch_size=4 checkpointing=selective,full

    nodes=1             hosts of the cluster; device= is the cluster's
    batch_size=8        samples of one GPU in a step, in as few micro-batches as fit; by default any micro-batch
    parallel='{fsdp: 8}', checkpointing=none,selective,every_second,full    by default all are tried
    wrapped=BlockA      classes whose modules are gathered, and run again, one by one; by default those that a list has
                        several of
    kernels=inductor    each of these modules is given to torch.compile
    reduce_dtype=fp32   in which gradients are added up
    allocator=expandable_segments:True  settings of PyTorch's caching allocator, here and for one GPU
    precision=bf16 optimizer=adamw      by default; output=json, processes=2 as above

Nothing runs on a device and nothing is allocated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from membench.cli.advise_cluster import ClusterOptions, parse_cluster, run_cluster
from membench.cli.assumptions import assumptions
from membench.cli.command_line import compose_step, words_of_one_step
from membench.cli.words import FLAG, NameIn, read_positive, take_options
from membench.core.errors import MembenchError
from membench.core.extras import require
from membench.core.files import shown, write_whole
from membench.core.hardware.device import file_name
from membench.core.record import Configuration
from membench.core.result import Output, print_result
from membench.core.terminal import show
from membench.sweep.composition import cell_configuration, resolved
from membench.sweep.results.tracked import Sweep, Tracking
from membench.sweep.results.tracking import check_tracking, log_sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from membench.advice.advise import Adviser
    from membench.advice.device.advice import Advice
    from membench.core.step.workload import Workload
    from membench.sweep.cells.cell import Cell

_PAGE = "html"
TIME_LIMIT_S = 6.0
"""For planning; what comes before takes as long again where the model is one of transformers."""


def _read_time_limit(name: str, text: str) -> float | None:
    return None if text == "none" else read_positive(name, text)


@dataclass(frozen=True)
class Options:
    """What is asked.

    Attributes:
        step: the configuration of the step.
        words: that describe the step.
        methods: names, or ``all``; None: see `membench.advise`.
        largest: whose largest batch is searched for.
        levers: whether changes to a program that does not fit are looked for.
        processes: that plan; None: one for each processor.
        time_limit: seconds for a program that does not fit; None: none.
    """

    step: Annotated[Configuration, FLAG]
    tracking: Annotated[Tracking, FLAG]
    words: Annotated[tuple[str, ...], FLAG]
    methods: tuple[Annotated[str, NameIn(("strategy",), also=("all",))], ...] | None = None
    largest: Literal["plain", "all", "none"] = "all"
    output: Literal[Output.TEXT, Output.JSON, Output.CSV, Output.MARKDOWN, "html"] = Output.TEXT
    levers: bool = True
    processes: int | None = None
    time_limit: Annotated[float | None, _read_time_limit] = TIME_LIMIT_S


def parse(words: Sequence[str]) -> Options | ClusterOptions:
    """Return the options that the words are."""
    own, words = words_of_one_step(words, "an advice is on one step")
    if any(word.startswith("cluster=") for word in words):
        return parse_cluster(words, own)
    options, described = take_options(words, Options)
    if not any(word.startswith("device=") for word in described):
        raise MembenchError(
            "name the device, as in: membench advise model=resnet50 device=rtx4090; or several GPUs, as in "
            "cluster=dgx_h100 nodes=2"
        )
    composed = compose_step("advise", described, own, {"framework": "pytorch", "strategy": "pytorch"})
    tracking = Tracking(**resolved(composed.tracking))
    check_tracking(tracking)
    if options.get("output") == _PAGE:
        require("figures", "output=html")
    return Options(cell_configuration(composed), tracking, tuple(words), **options)


def run(options: Options | ClusterOptions) -> int:
    """Print the advice and return the exit code."""
    if isinstance(options, ClusterOptions):
        return run_cluster(options)
    # torch takes seconds, which a wrong word need not wait for
    from membench.advice.device.text import further_elements
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(options.step)
    workload = cell.workload(cell.batch_size)
    adviser = adviser_of(options, cell, workload)
    advice = adviser.advice(
        options.methods,
        largest=options.largest,
        levers=options.levers,
        processes=options.processes,
        time_limit_s=options.time_limit,
        progress=True,
        begun=_print_begun if options.output is Output.TEXT else None,
    )
    folder = Path("outputs") / "advice"
    name = file_name(f"{advice.model}_{advice.device}")
    if options.output == _PAGE:
        print(shown(_write_page(folder / f"{name}.html", advice, _pictures(adviser, advice))))
    elif options.output is Output.TEXT:
        assumed = f"Assumed: {'; '.join(assumptions(workload, cell.optimizer, cell.simulated_device))}."
        show([*further_elements(advice), "", assumed])
    else:
        print_result(advice, Output(options.output))
    if options.tracking.mode != "disabled":
        _log(options, adviser, advice, folder / name)
    return 0 if advice.plans else 2


def adviser_of(options: Options, cell: "Cell", workload: "Workload") -> "Adviser":
    """Return what answers.

    Args:
        cell, workload: those of the step's configuration.
    """
    from membench.advice.advise import Adviser
    from membench.advice.device.configured import module_changes
    from membench.strategies.pytorch import PyTorch

    return Adviser(
        workload,
        cell.simulated_device,
        cell.request(PyTorch()),
        cell.machine,
        cell.host_memory_bytes,
        module_changes(options.step, _workload),
    )


def _print_begun(advice: "Advice") -> None:
    from membench.advice.device.text import plain_elements

    show(plain_elements(advice))


def _workload(step: Configuration) -> "Workload":
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(step)
    return cell.workload(cell.batch_size)


def _pictures(adviser: "Adviser", advice: "Advice") -> "dict[str, Figure]":
    from membench.advice.device.page import pictures

    plan = advice.shown
    return pictures(advice, plan, adviser.simulated(plan)) if plan else {}


def _write_page(path: Path, advice: "Advice", figures: "dict[str, Figure]") -> Path:
    from membench.advice.device.page import page

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(advice, figures))
    return path


def _log(options: Options, adviser: "Adviser", advice: "Advice", folder: Path) -> None:
    """Log the advice to W&B: its plans as a table; the page, the values and the figures as files."""
    found, figures = advice.to_dict(), _pictures(adviser, advice)
    files = [_write_page(folder / "advice.html", advice, figures), folder / "advice.json"]
    write_whole(folder / "advice.json", advice.to_json())
    for name, figure in zip(("frontier.png", "memory.png"), figures.values(), strict=False):
        figure.savefig(folder / name, dpi=200)
        files.append(folder / name)
    numbers = ("allocated_bytes", "reserved_bytes", "used_bytes", "step_time_s", "largest_batch")
    sweep = Sweep(
        name=f"advise {advice.model}",
        group=f"advise-{folder.name}",
        tags=[f"model:{advice.model}", f"device:{advice.device}"],
        configuration={"overrides": list(options.words), **options.step},
        summary={name: found[name] for name in numbers if found[name] is not None},
        tables={
            "rows": [{key: value for key, value in row.items() if key != "micro_batches"} for row in found["plans"]]
        },
        files={path.name: path for path in files},
        records=[],
    )
    log_sweep(options.tracking, sweep)
