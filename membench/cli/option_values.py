"""Validation of option values before anything runs.

An invalid value is a MembenchError of one line, which names the option, the valid values and the invalid one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from membench.core.checks import COUNT, NAME, POSITIVE, SWITCH, WHOLE, Requirement, check, choice
from membench.core.configuration import instantiate, names
from membench.core.errors import MembenchError, one_line
from membench.core.graph.precision import OF_STEPS, Precision
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.core.libraries.launched import launched
from membench.core.record import LARGEST
from membench.core.result import Output
from membench.core.step.kernels import Kernels
from membench.core.targets import find_function
from membench.core.units import parse_bytes
from membench.sweep.results.records import Rerun

Values = Mapping[str, Any]
"""A composed configuration, resolved."""

SEED = Requirement(  # those that torch accepts
    "a whole number of at most 64 bits", lambda value: WHOLE.holds(value) and -(2**63) <= value < 2**64
)
FOLDER = Requirement("a folder, such as outputs/records", lambda value: isinstance(value, str) and value != "")

LARGE_BATCH = 10**6
"""Samples beyond which the example batch may have more elements than a tensor can."""

CHOICES: Mapping[str, Sequence[str]] = {
    "batch_size": (LARGEST,),
    "exchange": ("as_made", "at_end"),  # `Exchange` and `micro_batch_size` have these; their modules import torch
    "kernels": list(Kernels),
    "micro_batch": ("fitted", "fastest"),
    "output": list(Output),
    "precision": OF_STEPS,
    "rerun": list(Rerun),
    **dict.fromkeys(("channels_last", "holds_output", "dry_run", "sensitivity", "strict"), ("true", "false")),
}
"""The words that options in files of `conf` can be."""

_PYTORCH = "membench.frameworks.pytorch.PyTorch"
_PLAIN = "membench.strategies.pytorch.PyTorch"
_CLEAR = (ImportError, AttributeError, TypeError, ValueError, RuntimeError)
"""Errors whose messages say what is wrong without the name of their class."""
_OF_A_MODEL = ("name", "module", "loss")


def check_running(values: Values) -> None:
    """Refuse invalid values of `conf/running.yaml` and `conf/tracking`."""
    choice(Rerun, "rerun", values["rerun"])
    if values["time_limit_s"] is not None:
        check(POSITIVE, time_limit_s=values["time_limit_s"])
    check(SWITCH, dry_run=values["dry_run"], strict=values["strict"])
    choice(names("tracking"), "tracking.mode", values["tracking"]["mode"])


def check_cell(values: Values) -> None:
    """Refuse invalid values of `conf/config.yaml`."""
    _check_batch_size(values)
    check(SEED, seed=values["seed"])
    check(POSITIVE, timeout_s=values["timeout_s"])
    _check_planning(values)
    check_running(values)
    for name in ("budget", "host_memory", "context", "also"):
        check_size(name, values.get(name))
    check(FOLDER, records=values["records"])
    if values.get("precision") is not None:
        Precision.of_step(values["precision"])
    check(SWITCH, **{name: values[name] for name in ("channels_last", "holds_output") if values.get(name) is not None})
    if values.get("holds_output"):
        _check_is_plain(values)
    if values.get("kernels") is not None:
        _check_kernels(choice(Kernels, "kernels", values["kernels"]), values)
    if values.get("parallel") is not None:
        _check_parallel(values["parallel"], values["backend"]["name"])
    if values.get("allocator") is not None:
        AllocatorSettings.parse(str(values["allocator"]))
    if values["metrics"] is not None:
        find_function(values["metrics"])
    _check_model(values["model"])
    choice(names("backend"), "backend.name", values["backend"]["name"])
    given = tuple(name for name in ("optimizer", "serving", "machine") if values.get(name) is not None)
    for name in ("strategy", "device", "cluster", "framework", *given):
        if not (isinstance(values[name], Mapping) and "_target_" in values[name]):
            message = f"{name}: its file in conf/{name} has no _target_, which names the class that it describes"
            raise MembenchError(message)
    built("device", partial(instantiate, values["device"], DeviceProfile))
    check(NAME, **{"device.name": values["device"]["name"]})
    built("cluster", partial(instantiate, values["cluster"], Cluster))
    built("framework.efficiency", partial(instantiate, values["framework"].get("efficiency"), Efficiency))


def _check_batch_size(values: Values) -> None:
    if values["batch_size"] != LARGEST:
        check(COUNT, batch_size=values["batch_size"])
    elif values["backend"]["name"] not in ("simulated", "cuda") or launched().count > 1:
        raise MembenchError(
            f"batch_size={LARGEST} is searched for on one device with a limit of memory; choose backend=simulated or "
            "cuda, or a number"
        )


def _check_model(model: Values) -> None:
    if missing := [name for name in _OF_A_MODEL if name not in model]:
        raise MembenchError(f"model: its file in conf/model has no {', '.join(missing)}")
    check(NAME, **{"model.name": model["name"]})
    check(SWITCH, **{"model.checkpointing": model.get("checkpointing", False)})
    if not model.get("inputs"):
        needs_targets = model["loss"] is not None and not model.get("targets")
        short = [("input_shape", "[3,224,224]"), *([("classes", "1000")] if needs_targets else [])]
        if missing := [f"model.{name}={value}" for name, value in short if model.get(name) is None]:
            raise MembenchError(
                f"model: {model['name']} has no description of its batch; give {' '.join(missing)}, or model.inputs "
                "and model.targets, such as 'model.inputs={x:{shape:[3,224,224]}}'"
            )


def _check_is_plain(values: Values) -> None:
    if values["backend"]["name"] != "simulated" or values["strategy"].get("_target_") != _PLAIN:
        raise MembenchError(
            "holds_output is of plain PyTorch's program where it is predicted; choose strategy=pytorch and "
            "backend=simulated, or leave it out"
        )


def _check_kernels(kernels: Kernels, values: Values) -> None:
    backend = values["backend"]["name"]
    is_alone = backend in ("cpu", "simulated") and launched().count == 1
    if kernels is not Kernels.EAGER and not is_alone:
        raise MembenchError(
            f"kernels={kernels} run in one process with backend=cpu, or are simulated; leave kernels out"
        )
    framework = values["framework"].get("_target_", "") if backend == "simulated" else ""
    if kernels is not Kernels.EAGER and framework and framework != _PYTORCH:
        raise MembenchError(f"kernels={kernels} are PyTorch's; choose framework=pytorch, or leave kernels out")


def _check_parallel(parallel: Any, backend: str) -> None:
    if not isinstance(parallel, Mapping):
        raise MembenchError(f"parallel is numbers of processes by axis, such as '{{fsdp: 2}}', not {parallel!r}")
    check(COUNT, **{f"parallel.{axis}": size for axis, size in parallel.items()})
    if backend != "cpu" or launched().count == 1:
        raise MembenchError(
            "parallel is of processes that torchrun starts, with backend=cpu; membench predict cluster=... predicts a "
            "step on several GPUs"
        )


def check_size(name: str, size: Any) -> None:
    """Refuse what is not a size in memory; None means unlimited."""
    try:
        if size is not None:
            parse_bytes(size)
    except ValueError as error:
        raise MembenchError(f"{name}: {error}") from error


def check_switches(before: Any, after: Any, name: str = "") -> None:
    """Refuse other values ``after`` the changes where true or false was ``before``: to Python, any word is true."""
    if isinstance(before, bool):
        check(SWITCH, **{name: after})
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() & after.keys():
            check_switches(before[key], after[key], f"{name}.{key}" if name else str(key))


def check_built(values: Values, groups: Collection[str]) -> None:
    """Build the objects of groups whose options, valid each, may be invalid together. Imports torch (seconds)."""
    from membench.core.hardware.machine import Machine
    from membench.core.step.optimizer import WeightUpdate
    from membench.frameworks.base import Framework
    from membench.models.serving import Serving
    from membench.sweep.cells.method import Method
    from membench.sweep.cells.model import Model

    method = Method(values["strategy"])
    size = 1 if values["batch_size"] == LARGEST else values["batch_size"]
    model = partial(Model.from_configuration, values["model"])
    makers: dict[str, Callable[[], object]] = {
        "framework": lambda: instantiate(values.get("framework"), Framework),
        "optimizer": lambda: instantiate(values.get("optimizer"), WeightUpdate),
        "serving": lambda: instantiate(values.get("serving"), Serving),
        "machine": lambda: instantiate(values.get("machine"), Machine),
        "model": lambda: model().workload(size, seed=values["seed"], device="meta"),
        "strategy": lambda: method.strategy(**({"density": 1.0} if method.measures_density else {})),
    }
    for group, make in makers.items():
        if group in groups:
            built(f"{group} with batch_size={size}" if group == "model" and size > LARGE_BATCH else group, make)


def built(name: str, make: Callable[[], Any]) -> Any:
    """Return the object that a group describes, as ``make`` builds it; an error names the group and the cause."""
    try:
        return make()
    except MembenchError as error:
        raise MembenchError(f"{name}: {error}") from error
    except Exception as error:  # of code of the user's own, too
        cause = one_line(error) if isinstance(error, _CLEAR) else f"{type(error).__name__}: {one_line(error)}"
        raise MembenchError(f"{name} cannot be built with these options: {cause}") from error


def _check_planning(values: Values) -> None:
    """Refuse what planning would refuse. The defaults need no check, and so no import of torch (seconds)."""
    if values["exchange"] != "as_made":
        from membench.planning.parallel.exchange import Exchange

        choice(Exchange, "exchange", values["exchange"])
    given = values["micro_batch"]
    if given is not None and values["batch_size"] != LARGEST:
        from membench.planning.rewrites.micro_batch import FASTEST, FITTED, micro_batch_size

        if given not in (FITTED, FASTEST):
            micro_batch_size(given if WHOLE.holds(given) else str(given), values["batch_size"])
