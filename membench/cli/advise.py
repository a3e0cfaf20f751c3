"""Advise on a step: does it fit a device, how large may its batch be, and which method is the fastest that fits?

    membench advise model=resnet50 device=rtx3090 batch_size=256 precision=amp_fp16 optimizer=adamw
    membench advise model=resnet50 device=rtx3090 batch_size=256 budget=5GB output=json
    membench advise model=hf/gpt2 device=this batch_size=16 precision=amp_bf16 optimizer=adamw

Takes the options of `membench run` that describe the step, --config-dir FOLDER included; device=this is the GPU at
hand, and kernels=inductor the step as torch.compile runs it. In addition:

    methods=a,b      by default all that schedule such a step
    largest=all      the largest batch of each method; or plain: of plain PyTorch alone; none
    output=text      or json; html writes a page, outputs/advice/<model>_<device>.html
    levers=true      what would make a step fit that plain PyTorch has no room for; or false
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

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose

from membench.cli.advise_cluster import ClusterOptions, parse_cluster, run_cluster
from membench.cli.assumptions import assumptions
from membench.cli.command_line import MULTIRUN, check_arguments
from membench.cli.words import (
    Reader,
    each,
    read_count,
    read_number,
    read_switch,
    refuse_flags,
    refuse_options,
    take_config_dir,
    take_options,
    with_own_model,
)
from membench.core import configuration
from membench.core.checks import POSITIVE, choice
from membench.core.errors import MembenchError
from membench.core.files import shown, write_whole
from membench.core.hardware.device import file_name
from membench.core.record import Configuration
from membench.sweep.composition import cell_configuration, hydra_composition, resolved
from membench.sweep.results.tracking import Sweep, Tracking, log_sweep
from membench.sweep.this_device import THIS, this_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from membench.advice.advise import Adviser
    from membench.advice.device.advice import Advice
    from membench.core.step.workload import Workload

OUTPUTS = ("text", "json", "html")
TIME_LIMIT_S = 6.0
"""For planning; what comes before takes as long again where the model is one of transformers."""


@dataclass(frozen=True)
class Options:
    """What is asked.

    Attributes:
        step: the configuration of the step.
        methods: names; None: all.
        largest: whose largest batch is searched for.
        levers: whether changes to a program that does not fit are looked for.
        processes: that plan; None: one for each processor.
        time_limit_s: for a program that does not fit; None: none.
        words: that describe the step.
    """

    step: Configuration
    methods: tuple[str, ...] | None
    largest: str
    output: str
    levers: bool
    processes: int | None
    time_limit_s: float | None
    tracking: Tracking
    words: tuple[str, ...]


def parse(words: Sequence[str]) -> Options | ClusterOptions:
    """Return the settings that the words are."""
    own, words = take_config_dir(given_words := words)
    if MULTIRUN & set(words):
        raise MembenchError("-m is not an option; an advice is on one step")
    refuse_flags(words)
    if any(word.startswith("cluster=") for word in words):
        return parse_cluster(given_words)
    readers: dict[str, Reader] = {
        "methods": each(partial(choice, configuration.names("strategy"), "methods")),
        "largest": partial(choice, ("plain", "all", "none"), "largest"),
        "output": partial(choice, OUTPUTS, "output"),
        "levers": partial(read_switch, "levers"),
        "processes": partial(read_count, "processes"),
        "time_limit": _read_time_limit,
    }
    options, described = take_options(words, readers)
    described = with_own_model(described)
    given = {word.partition("=")[0] for word in described}
    if "device" not in given:
        raise MembenchError(
            "name the device, as in: membench advise model=resnet50 device=rtx4090; or several GPUs, as in "
            "cluster=dgx_h100 nodes=2"
        )
    refuse_options(given, "advise")
    described = [*_with_this_device(described), "framework=pytorch", "strategy=pytorch"]
    check_arguments(described, own)
    with hydra_composition(own):
        composed = compose("config", described)
    return Options(
        cell_configuration(composed),
        methods=options.get("methods"),
        largest=options.get("largest", "all"),
        output=options.get("output", "text"),
        levers=options.get("levers", True),
        processes=options.get("processes"),
        time_limit_s=options.get("time_limit", TIME_LIMIT_S),
        tracking=Tracking(**resolved(composed.tracking)),
        words=tuple(words),
    )


def _read_time_limit(text: str) -> float | None:
    return None if text == "none" else read_number(POSITIVE, "time_limit", text)


def _with_this_device(words: Sequence[str]) -> list[str]:
    """Return the words with the card at hand in place of device=this."""
    if f"device={THIS}" not in words:
        return list(words)
    card = this_device()
    others = [word for word in words if word != f"device={THIS}"]
    return [*others, f"device={card.name}", f"device.memory_bytes={card.memory_bytes}"]


def run(settings: Options | ClusterOptions) -> int:
    """Print the advice and return the exit code."""
    if isinstance(settings, ClusterOptions):
        return run_cluster(settings)
    # torch takes seconds, which a wrong word need not wait for
    from membench.advice.advise import Adviser
    from membench.advice.device.configured import module_changes
    from membench.strategies.pytorch import PyTorch
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(settings.step)
    workload = cell.workload(cell.batch_size)
    adviser = Adviser(
        workload,
        cell.simulated_device,
        cell.request(PyTorch()),
        cell.machine,
        cell.host_memory_bytes,
        module_changes(settings.step, _workload),
    )
    advice = adviser.advice(
        settings.methods,
        largest=settings.largest,
        levers=settings.levers,
        processes=settings.processes,
        time_limit_s=settings.time_limit_s,
        progress=True,
    )
    folder = Path("outputs") / "advice"
    name = file_name(f"{advice.model}_{advice.device}")
    if settings.output == "html":
        print(shown(_write_page(folder / f"{name}.html", advice, _pictures(adviser, advice))))
    else:
        print(_text(advice, settings.output))
    if settings.output == "text":
        print(f"\nAssumed: {'; '.join(assumptions(workload, cell.optimizer, cell.simulated_device))}.")
    if settings.tracking.mode != "disabled":
        _log(settings, adviser, advice, folder / name)
    return 0 if advice.plans else 2


def _workload(step: Configuration) -> "Workload":
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(step)
    return cell.workload(cell.batch_size)


def _pictures(adviser: "Adviser", advice: "Advice") -> "dict[str, Figure]":
    from membench.advice.device.page import draw

    plan = advice.shown
    return draw(advice, plan, adviser.simulated(plan)) if plan else {}


def _write_page(path: Path, advice: "Advice", pictures: "dict[str, Figure]") -> Path:
    from membench.advice.device.page import page

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(advice, pictures))
    return path


def _text(advice: "Advice", output: str) -> str:
    from membench.advice.device.text import lines, values

    return json.dumps(values(advice), indent=2) if output == "json" else "\n".join(lines(advice))


def _log(settings: Options, adviser: "Adviser", advice: "Advice", folder: Path) -> None:
    """Log the advice to W&B: its plans as a table; the page, the values and the figures as files."""
    from membench.advice.device.text import values

    found, pictures = values(advice), _pictures(adviser, advice)
    files = [_write_page(folder / "advice.html", advice, pictures), folder / "advice.json"]
    write_whole(folder / "advice.json", json.dumps(found, indent=2))
    for name, figure in zip(("frontier.png", "memory.png"), pictures.values(), strict=False):
        figure.savefig(folder / name, dpi=200)
        files.append(folder / name)
    numbers = ("allocated_bytes", "reserved_bytes", "used_bytes", "step_time_s", "largest_batch")
    sweep = Sweep(
        name=f"advise {advice.model}",
        group=f"advise-{folder.name}",
        tags=[f"model:{advice.model}", f"device:{advice.device}"],
        configuration={"overrides": list(settings.words), **settings.step},
        summary={name: found[name] for name in numbers if found[name] is not None},
        rows=[{key: value for key, value in row.items() if key != "micro_batches"} for row in found["plans"]],
        files={path.name: path for path in files},
        records=[],
    )
    log_sweep(settings.tracking, sweep)
