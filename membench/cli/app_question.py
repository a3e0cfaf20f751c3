"""What is asked in a browser, as words of the command line, and the answers of the commands that take them."""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from membench.cli import advise, predict
from membench.cli.advise_cluster import ClusterOptions, cluster_advice
from membench.core import configuration
from membench.core.errors import MembenchError

if TYPE_CHECKING:
    from membench.advice.cluster.advice import ClusterAdvice
    from membench.advice.device.advice import Advice, AdvisedPlan

NONE = "none"
"""In place of a precision or an optimizer."""
_WITHOUT_EFFECT = (
    "architectures", "dtype", "id2label", "label2id", "model_type", "rope_parameters", "rope_scaling",
    "task_specific_params", "torch_dtype", "transformers_version",
)  # fmt: skip
"""In a ``config.json``: without effect on memory and time, or said elsewhere."""
_OF_SEARCH = ("budget", "largest", "levers", "methods", "processes", "time_limit")
"""Options of what fits, which the step as it is has no use for."""
_ONE_AT_A_TIME = Lock()
"""Hydra composes, and torch captures, with state of the process."""


@dataclass(frozen=True)
class Question:
    """A step.

    Attributes:
        model: a name, the import path of a class or a function that returns the module, or the path of a
            ``config.json`` of transformers.
        place: name of a device or a cluster.
        nodes: hosts of the cluster.
        precision, optimizer: a name, or `NONE`.
        more: further words, as in a shell.
    """

    model: str
    place: str
    nodes: int
    batch_size: int
    precision: str
    optimizer: str
    checkpointing: bool
    more: str = ""

    @property
    def is_of_cluster(self) -> bool:
        return self.place in configuration.names("cluster")

    def words(self) -> list[str]:
        """Return the words that ask it.

        Raises:
            MembenchError: no network is named, or a file cannot be read or has no type of model.
        """
        place = [f"cluster={self.place}", f"nodes={self.nodes}"] if self.is_of_cluster else [f"device={self.place}"]
        return [*_of_model(self.model), *place, *self._of_step(), *shlex.split(self.more)]

    def words_of_step(self) -> list[str]:
        """Return the words without those on what is looked for."""
        return [word for word in self.words() if word.partition("=")[0] not in _OF_SEARCH]

    def _of_step(self) -> Iterator[str]:
        yield f"batch_size={self.batch_size}"
        for name, value in (("precision", self.precision), ("optimizer", self.optimizer)):
            if value != NONE:
                yield f"{name}={value}"
        if self.checkpointing:
            yield "model.checkpointing=true"

    def command(self, method: str | None = None) -> str:
        """Return the command line that answers it.

        Args:
            method: name of one that is to be planned; None: the step alone is predicted.
        """
        if method is None and not self.is_of_cluster:
            return shlex.join(["membench", "predict", *self.words_of_step()])
        words = [word for word in self.words() if not (method and word.startswith("methods="))]
        return shlex.join(["membench", "advise", *words, *([f"methods={method}"] if method else [])])


def _of_model(model: str) -> list[str]:
    if not model:
        raise MembenchError("name a network, such as gpt2")
    if model.endswith(".json"):
        return _of_config(Path(model))
    is_path = "." in model and "/" not in model
    return [f"model._target_={model}" if is_path else f"model={model}"]


def _of_config(path: Path) -> list[str]:
    """Return the words for the network of a configuration of transformers.

    Raises:
        MembenchError: it cannot be read, or has parts that cannot be given as options.
    """
    try:
        described: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise MembenchError(f"{path} cannot be read: {error}") from error
    if "model_type" not in described:
        raise MembenchError(f"{path} has no model_type, which names the network; choose a config.json")
    if parts := [name for name, value in described.items() if isinstance(value, dict) and name not in _WITHOUT_EFFECT]:
        raise MembenchError(f"{path}: {', '.join(parts)} cannot be given as options; name a function in place of it")
    sizes = {
        name: json.dumps(value)
        for name, value in described.items()
        if value is not None and name not in _WITHOUT_EFFECT and not name.startswith("_")
    }
    return [f"model=hf/{described['model_type']}", *(f"model.module.{name}={value}" for name, value in sizes.items())]


def predicted(question: Question) -> predict.Answer:
    """Return the prediction of a step on a card.

    Raises:
        MembenchError: see `membench.predict`.
    """
    with _ONE_AT_A_TIME:
        return predict.answer(predict.parse(question.words_of_step()))


def advised(
    question: Question, begun: Callable[["Advice"], None], found_plan: Callable[["AdvisedPlan"], None]
) -> "Advice | ClusterAdvice":
    """Return the methods with which a step fits a card, or the combinations with which it fits a cluster.

    Args:
        begun, found_plan: see `membench.advice.advise.Adviser.advice`; not called of a cluster.

    Raises:
        MembenchError: see `membench.advise`.
    """
    from membench.sweep.cells.cell import Cell

    with _ONE_AT_A_TIME:
        options = advise.parse(question.words())
        if isinstance(options, ClusterOptions):
            return cluster_advice(options)
        cell = Cell.from_configuration(options.step)
        adviser = advise.adviser_of(options, cell, cell.workload(cell.batch_size))
        return adviser.advice(
            options.methods or "all", largest="none", levers=False, time_limit_s=options.time_limit,
            begun=begun, found_plan=found_plan,
        )  # fmt: skip
