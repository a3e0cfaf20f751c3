"""Cells of the blind test: configurations of membench from a paper's words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from membench.core.configuration import read
from membench.core.record import Configuration
from membench.lab.papers.reading.loader import merged

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One network by one method on one device, at any batch size.

    Attributes:
        network: an entry of a paper's ``networks``: ``model``, a file of conf/model; ``set``, changes to it;
            ``framework``, which then counts in place of the method's; ``device_set``, changes to the device;
            ``optimizer``.
        method: an entry of its ``methods``: ``strategy`` and ``framework`` with ``set`` and ``framework_set``, and
            ``budget``.
        device: as a file of conf/device describes it.
    """

    network: Options
    method: Options
    device: dict[str, Any]

    def configuration(self, batch_size: int, blocks: list[int] | None = None) -> Configuration:
        """Return the cell's configuration.

        Args:
            blocks: numbers of blocks in a residual network's stages, in place of its own.
        """
        model = merged(read("model", self.network["model"]), self.network.get("set", {}))
        if blocks is not None:
            model = merged(model, {"module": {"blocks": blocks}})
        found: dict[str, Any] = {
            "model": model,
            "batch_size": batch_size,
            "strategy": self._strategy(),
            "framework": self._framework(),
            "device": merged(self.device, self.network.get("device_set", {})),
            "backend": read("backend", "simulated"),
            "seed": 0,
        }
        if budget := self.method.get("budget"):
            found["budget"] = budget
        if optimizer := self.network.get("optimizer"):
            found["optimizer"] = {**read("optimizer", optimizer), "foreach": False}
        return found

    def _strategy(self) -> dict[str, Any]:
        target = self.method["strategy"]
        named = {"_target_": target} if "." in target else read("strategy", target)
        return merged(named, self.method.get("set", {}))

    def _framework(self) -> dict[str, Any]:
        if framework := self.network.get("framework"):
            return read("framework", framework)
        return merged(read("framework", self.method["framework"]), self.method.get("framework_set", {}))
