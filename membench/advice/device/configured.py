"""Changes of a configured module: checkpointing and adapters, as options of its file switch them on."""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from membench.advice.device.changes import Change, Kind, ModuleChanges
from membench.core.errors import MembenchError, one_line
from membench.core.record import Configuration
from membench.core.step.workload import Workload

RANK = 16
"""Of adapters; theirs is a small part of the memory at any usual rank."""
_OF_ADAPTERS = {"r": RANK, "target_modules": "all-linear"}
_OF_LORA = {"lora": _OF_ADAPTERS}
_OF_QLORA = {"lora": _OF_ADAPTERS, "quantization": "bnb.nf4"}
_TRAINED = f"adapters of rank {RANK} on all linear layers are trained, and no other weight"


def module_changes(configuration: Configuration, build: Callable[[Configuration], Workload]) -> ModuleChanges:
    """Return the changes of a configuration's model.

    Args:
        build: returns the workload of a configuration.
    """
    found = dict(_changes(configuration["model"]))

    def build_with(names: frozenset[str]) -> Workload:
        options = {key: value for name in sorted(names) for key, value in found[name][1].items()}
        try:
            return build({**configuration, "model": {**configuration["model"], **options}})
        except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise MembenchError(one_line(error)) from error

    return ModuleChanges(tuple(change for change, _ in found.values()), build_with)


def _changes(model: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Change, dict[str, Any]]]]:
    """Yield by name each change, and the options of the model that it sets."""
    if not model.get("checkpointing"):
        yield (
            "checkpointing",
            (
                Change(
                    "checkpointing",
                    Kind.CHECKPOINTING,
                    ("model.checkpointing=true",),
                    "layers run again in the backward pass",
                    is_exact=True,
                ),
                {"checkpointing": True},
            ),
        )
    if model.get("lora") or not _is_of_transformers(model) or find_spec("peft") is None:
        return
    of_all = frozenset({Kind.UPDATE, Kind.STATES})
    lora = (f"model.lora.r={RANK}", "model.lora.target_modules=all-linear")
    yield ("LoRA", (Change("LoRA", Kind.ADAPTERS, lora, _TRAINED, of_all, keeps_weights=True), _OF_LORA))
    if not model.get("quantization") and find_spec("bitsandbytes") is not None:
        quantized = Change(
            "QLoRA",
            Kind.ADAPTERS,
            (*lora, "model.quantization=bnb.nf4"),
            f"{_TRAINED}; those have 4 bits",
            of_all,
            is_last_resort=True,
        )
        yield "QLoRA", (quantized, _OF_QLORA)


def _is_of_transformers(model: Mapping[str, Any]) -> bool:
    target = model["module"].get("_target_", "")
    return str(target).startswith(("membench.models.hugging_face.", "transformers."))
