"""Keywords by which users ask for a step: each is declared once, here, with its name, its type and what it must be.

`membench.compile`, `membench.predict` and `membench.advise` take them, and turn them into a `StepRequest` and a
`Hardware`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import cleandoc
from numbers import Integral
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_type_hints

from torch import nn

from membench.core.checks import Requirement, check
from membench.core.errors import near
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.machine import Machine
from membench.steps.arguments import OptimizerLike
from membench.steps.kinds import AnyPrecision, Count, Folder, Name, Size, Switch, instance_of
from membench.steps.parallel.keywords import DivisionKeywords, RankKeywords
from membench.strategies.base import Strategy

_MODULE = Requirement(
    "a torch.nn.Module, and an instance rather than its class", lambda value: isinstance(value, nn.Module)
)
_DEVICE = instance_of(str | DeviceProfile, "a name such as 'h100', or a DeviceProfile")
_CLUSTER = instance_of(str | Cluster, "a name such as 'dgx_h100', or a Cluster")


class DeviceKeywords(TypedDict, total=False):
    """What a step runs on.

    Attributes:
        device: a name (``"rtx4090"``) or a profile; None: the cluster's.
        machine: that the device is in: a name (``"desktop"``) or a description; None: ``"server"``. It matters where a
            strategy keeps weights or the optimizer's states in host memory.
    """

    device: Annotated[str | DeviceProfile, _DEVICE] | None
    machine: str | Machine | None


class HardwareKeywords(DeviceKeywords, total=False):
    """All that a step runs on.

    Attributes:
        cluster: several devices: a name (``"dgx_h100"``) or a description.
        host_memory: the most that the strategy may hold in host memory, what does not fit is kept on the machine's
            disk; None: what the machine has. Of several GPUs: all ranks of a host together, which share its processor
            and its disk as well.
    """

    cluster: Annotated[str | Cluster, _CLUSTER] | None
    host_memory: Size | None


class HostKeywords(TypedDict, total=False):
    """The hosts of several GPUs.

    Attributes:
        nodes: hosts of the cluster.
    """

    nodes: Count


class ProcessKeywords(TypedDict, total=False):
    """The processes of a step.

    Attributes:
        allocator: settings of PyTorch's caching allocator as in ``PYTORCH_ALLOC_CONF``:
            ``"expandable_segments:True"``, ``"max_split_size_mb:128"``; they change what is reserved, and with it
            whether the step fits.
        context: memory that the process holds on each device outside of the caching allocator, as in ``"1605 MB"``:
            what nvidia-smi shows less ``torch.cuda.memory_reserved()``. None: as the device's file has it.
        also: memory that the process holds there besides the step, such as a second network; it counts in whether the
            step fits.
    """

    allocator: Annotated[str, instance_of(str, "a text such as 'expandable_segments:True'")] | None
    context: Size | None
    also: Size | None


class ProgramKeywords(TypedDict, total=False):
    """What a step computes.

    Attributes:
        optimizer: updates the weights in the step, after its last micro-batch and any exchange: a name (``"adamw"``), a
            class (``torch.optim.AdamW``), a `functools.partial` of one (``partial(torch.optim.AdamW, fused=True)``), an
            instance over weights of the module, which a prediction leaves as it is, or a `membench.WeightUpdate`, which
            also updates in the backward pass. A real step steps the instance, or one that it makes of all of the
            module's weights. None: the step ends with the gradients.
        precision: ``"bf16"`` and ``"fp16"`` run the whole step in half precision, ``"amp_bf16"`` and ``"amp_fp16"`` its
            forward pass and loss within ``torch.autocast``; ``"tf32"`` rounds products' factors on a GPU, ``"fp32"``
            nothing. None: as the module is, with torch's default, in which convolutions on a GPU round theirs. A real
            step converts the module as ``module.to`` would, and takes inputs of that dtype; others leave it alone.
            Dtypes of torch (``torch.bfloat16``) and names of Lightning (``"bf16-mixed"``) are read as well
            (`membench.core.spelling`).
        kernels: ``"eager"`` runs PyTorch's operators, bit for bit. ``"inductor"`` fuses them as `torch.compile` does,
            and schedules the fused ones (`membench.planning.fusion.graph`): on the CPU, with random numbers as eager
            PyTorch draws them, and simulated; on GPUs that divide the weights each module by itself that is gathered.
            Results differ from eager's by what fusing rounds, and not between strategies. On the CPU convolutions are
            faster with `channels_last`, to which `torch.compile` changes them by itself. None: ``"eager"`` in a real
            step; else ``"inductor"`` for the modules and the loss that were given to `torch.compile`, each by itself.
    """

    optimizer: OptimizerLike
    precision: AnyPrecision | None
    kernels: Name | None


class StepKeywords(ProgramKeywords, total=False):
    """Memory of a step.

    Attributes:
        budget: the most device memory that the step may hold, weights and inputs included. None: on a simulated device
            what it has, where the step needs more without a budget; otherwise no limit.
        channels_last: weights and inputs with four dimensions have that memory format; of a real step, the module's
            too.
    """

    budget: Size | None
    channels_last: Switch


class MethodKeywords(StepKeywords, total=False):
    """How a step saves memory.

    Attributes:
        strategy: a name (``"layrub_hybrid"``) or an instance.
    """

    strategy: str | Strategy


class LoopKeywords(TypedDict, total=False):
    """The program around a step that is predicted under plain PyTorch.

    Attributes:
        holds_output: the program has the module's output in a variable, as in ``output = module(inputs)``, from one
            step to the next. By default it is given back once the loss is computed, as in
            ``loss(module(inputs), targets)``, in a function that returns the loss alone, and behind ``del output``. A
            compiled step does that too; that of a wrapped module holds the output as its caller does.
    """

    holds_output: Switch


class PredictKeywords(
    MethodKeywords, LoopKeywords, HardwareKeywords, HostKeywords, ProcessKeywords, RankKeywords, total=False
):
    """Options of `membench.predict`: those of a step, its program, what it runs on, and several GPUs."""


class CompileKeywords(MethodKeywords, HardwareKeywords, total=False):
    """Options of `membench.compile`, in addition to those of a step; what it runs on is for the simulated backend.

    Attributes:
        backend: ``"cpu"`` and ``"cuda"`` run the step for real. ``"cuda"`` moves the module as ``module.to`` would: to
            the GPU, or to page-locked host memory if the strategy keeps its weights there. ``"simulated"`` simulates
            the step on `device`, at any size, without allocating anything; module and batch may then be on the meta
            device, and a `cluster` is that number of such devices, each with a batch like this one, and their links.
        disk: for a real step with a limit of `host_memory`: an existing folder on a disk, for a file that vanishes with
            the process; weights and states that have no room go there, in a real step the states alone (see
            `RealStep.restore`). None: the folder for temporary files.
        micro_batch: number of samples to compute at a time; ``"fitted"`` for the most that Equation 8 of moDNN finds
            room for, or ``"fastest"`` for those with which a step takes the least time, which plans each size from
            there on. None: the strategy chooses, most strategies the whole batch.
        exchange: for the processes of torch's default group, each of which compiles with its share of a batch, and for
            a cluster: average their gradients ``"as_made"`` or ``"at_end"`` (moDNN, Section 6.2), so that ``.grad`` is
            the whole batch's. All start from the first process's weights and buffers, and run its schedule; the loss is
            the share's.
        cuda_graph: for the cuda backend: replay the step as one CUDA graph, for models bound by launches.
        shapes: ``"fixed"`` refuses batches that are not like the example; ``"any"`` captures and plans each new kind of
            a real step's batch when it first gets one, and keeps up to `membench.steps.real.kept_steps.MOST_KEPT` of
            them, each with its first batch.
    """

    backend: Name
    disk: Folder | None
    micro_batch: Annotated[int | str, instance_of(str | Integral, "a number of samples, or a word")] | None
    exchange: Name | None
    cuda_graph: Switch
    shapes: Name


_Entry = TypeVar("_Entry", bound=Callable[..., Any])


def takes(*declared: type) -> Callable[[_Entry], _Entry]:
    """Return a decorator that adds the options of an entry to its docstring, for `help`.

    Args:
        declared: classes of keywords, the last of them with all of the entry's.
    """

    def documented(entry: _Entry) -> _Entry:
        options = "\n".join(_described(declared))
        entry.__doc__ = f"{cleandoc(entry.__doc__ or '')}\n\nOptions:\n{options}\n"
        return entry

    return documented


def _described(declared: Sequence[type]) -> Iterator[str]:
    """Yield the lines about keywords in the docstrings of their classes."""
    for kind in (*_KINDS, *declared):
        if kind.__annotations__.keys() <= declared[-1].__annotations__.keys():
            _, _, attributes = cleandoc(kind.__doc__ or "").partition("Attributes:\n")
            yield from attributes.splitlines()


_KINDS = (
    ProgramKeywords, StepKeywords, MethodKeywords, LoopKeywords, DeviceKeywords, HardwareKeywords, HostKeywords,
    ProcessKeywords, DivisionKeywords, RankKeywords,
)  # fmt: skip


def check_is_module(module: Any) -> None:
    """Refuse what is not a module, or a class in place of one.

    Raises:
        MembenchError: it is none.
    """
    check(_MODULE, **{"the module": module})


def check_keywords(declared: type, given: Mapping[str, Any], entry: str) -> None:
    """Refuse keywords that an entry does not have, and values that are not of their kind; None: not given.

    Args:
        declared: the keywords' class.
        entry: name of the function that was called.

    Raises:
        TypeError: there is no such keyword.
        MembenchError: names the keyword, what it is, and the value.
    """
    hints = get_type_hints(declared, include_extras=True)
    for name, value in given.items():
        if name not in hints:
            raise TypeError(f"{entry}() got an unexpected keyword argument {name!r}{near(name, hints)}")
        if value is not None and (requirement := _requirement_in(hints[name])):
            check(requirement, **{name: value})


def _requirement_in(hint: Any) -> Requirement | None:
    metadata = getattr(hint, "__metadata__", ())
    found = next((each for each in metadata if isinstance(each, Requirement)), None)
    return found or next(filter(None, map(_requirement_in, get_args(hint))), None)


def workload_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that `workload_of` takes, as far as they are given."""
    names = ("precision", "channels_last", *get_type_hints(LoopKeywords))
    return {name: options[name] for name in names if options.get(name) is not None}


def ranks_in(options: PredictKeywords) -> dict[str, Any]:
    """Return those of the options that say how several GPUs divide a step, and its micro-batches."""
    names = get_type_hints(RankKeywords)
    return {name: value for name, value in options.items() if name in names and value is not None}
