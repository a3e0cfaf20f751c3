"""Models that have no file in ``conf/model``, as a source of configurations for Hydra.

``model=timm/NAME`` and ``model=hf/NAME`` are networks of timm and transformers, ``model=own/mypackage.MyNet`` is any
class or function that returns a module. Options of their constructors and of the batch may be added:
``model.module.width=64``.
"""

from collections.abc import Callable
from typing import Any

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

_OPEN = ("module", "loss", "inputs", "targets", "lora")
"""Options in which the command line may add others."""
_FINE_TUNING: dict[str, Any] = {
    "quantization": None,
    "unquantized": None,
    "bnb_4bit_quant_storage": None,
    "lora": {},
    "checkpointing": False,
}
"""Options of each of these models; see `Model`."""


def _timm(name: str) -> dict[str, Any]:
    from membench.models.timm_networks import options_of

    return options_of(name)


def _hugging_face(name: str) -> dict[str, Any]:
    from membench.models.hugging_face import options_of

    return options_of(name)


def _own(name: str) -> dict[str, Any]:
    return {
        "name": name.rpartition(".")[2],
        "module": {"_target_": name},
        "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
        "inputs": {},
        "targets": {},
        "input_shape": None,
        "vocabulary": None,
        "classes": None,
        "target_shape": [],
        "batch_size": 32,
    }


_LIBRARIES: dict[str, Callable[[str], dict[str, Any]]] = {"timm": _timm, "hf": _hugging_face, "own": _own}
SPELLINGS = "timm/NAME, hf/NAME, or model._target_=mypackage.MyNet"


class ModelSource(ConfigSource):
    """The configurations ``model/timm/NAME``, ``model/hf/NAME`` and ``model/own/NAME``, made when they are loaded."""

    @staticmethod
    def scheme() -> str:
        return "models"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a model's options.

        Raises:
            MembenchError: the library is not installed, or has no such network.
        """
        _, library, name = config_path.split("/", 2)
        options = OmegaConf.create({**_LIBRARIES[library](name), **_FINE_TUNING})
        for key in _OPEN:
            if isinstance(options.get(key), DictConfig):
                OmegaConf.set_struct(options[key], False)
        return ConfigResult(provider=self.provider, path=self.full_path(), config=options, header={"package": None})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", "model", *(f"model/{library}" for library in _LIBRARIES))

    def is_config(self, config_path: str) -> bool:
        return any(config_path.startswith(f"model/{library}/") for library in _LIBRARIES)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


SourcesRegistry.instance().register(ModelSource)
