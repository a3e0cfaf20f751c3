"""An installed package that adds to membench, checked: each of its files, and its strategies by the whole contract."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from membench.backends.cpu import CpuBackend
from membench.conformance.networks import workload_of
from membench.conformance.plans import check_budget, check_copies, check_repeats
from membench.conformance.recorded_steps import complaints
from membench.conformance.results import Reference, reference_of, require
from membench.conformance.steps import check_results_and_peak
from membench.core.configuration import CONF_DIRECTORY, instantiate, read_options
from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.machine import Machine
from membench.core.packages import GROUP, added_packages
from membench.core.step.optimizer import WeightUpdate
from membench.core.targets import find_target
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.plan import plan
from membench.steps.predict import predict
from membench.strategies.base import Strategy
from membench.sweep.cells.model import Model

_CPU = torch.device("cpu")
_KINDS = {
    "cluster": Cluster,
    "device": DeviceProfile,
    "machine": Machine,
    "optimizer": WeightUpdate,
    "strategy": Strategy,
}
"""What files of these groups describe; those of other groups are read alone."""
_DEVICE = "h100"
"""On which models are predicted."""
Check = Callable[[], object]


@dataclass(frozen=True)
class Finding:
    """One check of a package.

    Attributes:
        file: ``strategy/mine.yaml``, in its folder ``conf``, ``rows/mine.json``, or ``experiments/my_paper``.
        what: was checked.
        broken: why it does not hold; empty where it does.
    """

    file: str
    what: str
    broken: str = ""


def check_package(package: str, networks: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each check of a package's files, as soon as it is made.

    Args:
        package: name of the package, as it is imported.
        networks: names of `NETWORKS`, on which strategies are run.

    Raises:
        MembenchError: the package is not installed, does not name itself in an entry point, or has no files.
    """
    known = added_packages()
    if package not in known:
        raise MembenchError(
            f"no installed package names {package!r} in an entry point of the group {GROUP!r}; there are: "
            f"{', '.join(known) or 'none'}"
        )
    files = sorted(known[package].glob("conf/*/*.yaml"))
    rows = sorted(known[package].glob("rows/*.json"))
    if not (files or rows or (known[package] / "experiments").is_dir()):
        raise MembenchError(f"{package} adds nothing: {known[package]} has no file such as conf/strategy/NAME.yaml")
    for path in files:
        for what, check in _checks(path, networks):
            yield Finding(f"{path.parent.name}/{path.name}", what, broken(check))
    for path in rows:
        yield Finding(f"rows/{path.name}", "the rows are accepted", "; ".join(complaints(path)))


def broken(check: Check) -> str:
    """Return why a check does not hold; empty if it does."""
    try:
        check()
    except Exception as error:  # of the package's code
        known = isinstance(error, MembenchError)
        return " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
    return ""


def _checks(path: Path, networks: Sequence[str]) -> Iterator[tuple[str, Check]]:
    group, name = path.parent.name, path.stem
    yield "the group and the name are free", partial(_check_name, group, name)
    yield "it describes what its group has", partial(_check_made, group, path)
    if group == "model":
        yield f"a step is predicted on {_DEVICE}", partial(_check_model, path)
    if group == "device":
        yield "a step is predicted", partial(_check_device, path)
    if group == "strategy":
        for network in networks:
            yield network, partial(_check_strategy, path, network)


def _check_name(group: str, name: str) -> None:
    require((CONF_DIRECTORY / group).is_dir(), f"membench has no group {group!r}")
    is_taken = (CONF_DIRECTORY / group / f"{name}.yaml").exists()
    require(not is_taken, f"membench has {group}={name} itself, which counts; choose another name")
    folders = [folder for folder in added_packages().values() if (folder / "conf" / group / f"{name}.yaml").exists()]
    require(len(folders) == 1, f"{group}={name} is in several packages: {', '.join(map(str, folders))}")


def _check_made(group: str, path: Path) -> None:
    options = read_options(path)
    if group == "model":
        Model.from_configuration(options)
    elif group == "strategy":
        name = getattr(find_target(options.get("_target_"), Strategy), "name", None)
        require(name is not None, "the class has no name")
    if group in _KINDS:
        made = instantiate({key: value for key, value in options.items() if key != "defaults"}, _KINDS[group])
        if isinstance(made, DeviceProfile | Strategy):
            require(made.name == path.stem, f"its name is {made.name!r}, and the file's {path.stem!r}")


def _check_model(path: Path) -> None:
    model = Model.from_configuration(read_options(path))
    work = model.workload(2, seed=0, device="meta")
    found = predict(work.module, work.loss, (work.inputs, work.targets), device=_DEVICE)
    require(found.used_bytes is not None and found.step_time_s > 0, "the prediction has no time")


def _check_device(path: Path) -> None:
    work = workload_of("squeezenet", _CPU)
    profile: DeviceProfile = instantiate(read_options(path), DeviceProfile)
    found = predict(work.module, work.loss, (work.inputs, work.targets), device=profile)
    require(found.step_time_s > 0, "the prediction has no time")


def _check_strategy(path: Path, network: str) -> None:
    strategy: Strategy = instantiate(read_options(path), Strategy)
    case, cost = _reference(network), MeasuredCost(_CPU)
    graph = case.captured.graph
    with suppress(UnsupportedStrategy):  # which is an answer: a method may be of other networks
        schedule = plan(graph, strategy, cost, None)
        check_copies(schedule)
        check_repeats(graph, strategy, cost, schedule)
        check_budget(graph, strategy, cost, schedule, moves_weights=strategy.moves_weights)
        check_results_and_peak(case, schedule, lambda planned, chaos: CpuBackend(planned.graph, chaos=chaos))


@cache
def _reference(network: str) -> Reference:
    return reference_of(workload_of(network, _CPU))
