"""Layers of a trace: the module or function that runs, in either pass, in the loss, or again.

A module without children is a layer; outside of one, each functional call is a layer of its own. Layers that are called
several times get a number. In the backward pass the layer is that whose node autograd runs; what a region of
`torch.utils.checkpoint` runs again belongs to the layers of its first run.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, Phase
from membench.core.libraries.torch_internals import next_sequence_number, sequence_number


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the step that the backward pass runs again.

    Attributes:
        phase: in which it runs for the first time.
        layer: the first layer that is made in it.
        path: path of the module in whose forward it begins.
    """

    phase: Phase
    layer: int
    path: str = ""


class Layers:
    """The layers of a trace, and the one that is running.

    Attributes:
        names: by index.
        phase: the step's phase.
        current: the layer that is running.
        is_recomputing: a part of the forward pass or of the loss runs again.
        in_node: autograd runs a node, and does not add up what several have returned.
        node: name of the node of autograd that ran last, ``"MaximumBackward0"``.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.phase = Phase.FORWARD
        self.current = -1
        self.is_recomputing = False
        self.in_node = False
        self.node = ""
        self._module_path: list[str] = [""]
        self._leaf: int | None = None
        self._of_name: defaultdict[str, list[int]] = defaultdict(list)
        self._of_node: dict[int, int] = {}
        self._again: Counter[str] = Counter()  # uses of each name in the region that runs again
        self._region = Region(Phase.FORWARD, 0)

    @property
    def name(self) -> str:
        """Name of the layer that is running, for error messages."""
        name = self._module_path[-1] if self._leaf is None else self.names[self.current]
        return name or "the model"

    @property
    def suffix(self) -> str:
        """Suffix of the names of what is running: that of recomputation, or none."""
        return RECOMPUTED_SUFFIX if self.is_recomputing else ""

    @property
    def is_forward(self) -> bool:
        """Whether the forward pass or the loss runs, for the first time or again."""
        return self.phase is not Phase.BACKWARD or self.is_recomputing

    # ---- modules ------------------------------------------------------------------------------------

    def enter_module(self, path: str, is_leaf: bool) -> None:
        """Note the module that runs."""
        self._module_path.append(path)
        if is_leaf and self.phase is not Phase.LOSS:
            self._leaf = self.current = self._made(path)

    def leave_module(self) -> None:
        """Note that the module that runs has ended."""
        self._module_path.pop()
        self._leaf = None

    def enter_loss(self, layer: str) -> None:
        """Note that the forward pass has ended."""
        self.phase = Phase.LOSS
        self._leaf = self.current = self._new(layer)

    def of_function(self, name: str) -> int:
        """Return the layer of an operator that runs now: a functional call of the forward pass is one of its own."""
        in_forward = self.phase is Phase.FORWARD or (self.is_recomputing and self._region.phase is Phase.FORWARD)
        if self._leaf is None and in_forward:
            path = self._module_path[-1]
            self.current = self._made(f"{path}.{name}" if path else name)
        return self.current

    def _made(self, name: str) -> int:
        """Return a new layer of the forward pass, or the one of the first run."""
        if self.phase is not Phase.BACKWARD:
            return self._new(name)
        uses = self._of_name[name]
        position = bisect_left(uses, self._region.layer) + self._again[name]
        self._again[name] += 1
        return uses[position] if position < len(uses) else self.current

    def _new(self, name: str) -> int:
        uses = self._of_name[name]
        uses.append(len(self.names))
        self.names.append(name if len(uses) == 1 else f"{name}#{len(uses)}")
        return uses[-1]

    # ---- regions that run again ---------------------------------------------------------------------

    def region(self) -> Region:
        """Return the region that starts here."""
        if self.is_recomputing:
            return Region(self._region.phase, self.current + 1, self._module_path[-1])
        first = len(self.names) if self.phase is Phase.FORWARD else self.current
        return Region(self.phase, first, self._module_path[-1])

    @contextmanager
    def again(self, region: Region) -> Iterator[None]:
        """Run a region again, up to its end or an exception."""
        before = (
            self._module_path, self._leaf, self.current, self.is_recomputing, self.in_node, self._again, self._region
        )  # fmt: skip
        self._module_path, self._leaf, self._again, self._region = [region.path], None, Counter(), region
        self.current = min(region.layer, len(self.names) - 1)
        self.is_recomputing = self.in_node = True
        try:
            yield
        finally:
            (
                self._module_path, self._leaf, self.current, self.is_recomputing,
                self.in_node, self._again, self._region
            ) = before  # fmt: skip

    # ---- nodes of autograd --------------------------------------------------------------------------

    def note_node(self) -> None:
        """Note the layer of the next node that autograd makes; an operator of the forward pass is about to run."""
        self._of_node.setdefault(next_sequence_number() - 1, self.current)

    def follow(self, nodes: Counter[Any]) -> None:
        """Hook autograd's nodes so that each sets its layer while it runs.

        Args:
            nodes: with the number of gradients that each receives.
        """
        known = sorted(self._of_node)
        for node in nodes:
            if getattr(node, "variable", None) is not None:
                continue  # of a leaf: keeps its gradient, in the layer whose node made it
            position = bisect_right(known, sequence_number(node)) - 1
            layer = self._of_node[known[position]] if position >= 0 else self.current
            node.register_prehook(partial(self._enter_node, layer, node.name()))
            if _is_added_up(nodes, (following for following, _ in node.next_functions)):
                node.register_hook(lambda *_: self._leave_node())

    def _enter_node(self, layer: int, name: str, *_: Any) -> None:
        self.current, self.node = layer, name
        self.in_node = True

    def _leave_node(self) -> None:
        self.in_node = False


def _is_added_up(nodes: Counter[Any], following: Iterable[Any]) -> bool:
    return any(nodes.get(each, 0) > 1 for each in following)
