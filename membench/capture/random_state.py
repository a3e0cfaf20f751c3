"""torch's default generator during a trace, in which nothing is drawn although a step draws."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from membench.core.errors import UnsupportedModel
from membench.core.torch_internals import no_dispatch


class RandomState:
    """Draws a number for each random operator of a trace, so that a change of the generator by the module shows.

    A step would not seed the generator, as ``torch.manual_seed`` does. It restores a state that the trace has read, as
    `torch.utils.checkpoint` and ``torch.random.fork_rng`` do. A context that leaves the generator as it was.
    """

    def __init__(self) -> None:
        self._expected = torch.empty(0)

    def __enter__(self) -> Self:
        self._before = torch.default_generator.get_state()
        self._draw()  # a module that seeds as the program did just now makes another state than this
        return self

    def __exit__(self, *_: object) -> None:
        with no_dispatch():
            torch.default_generator.set_state(self._before)

    def advance(self, layer: str) -> None:
        """Draw a number in place of a random operator.

        Raises:
            UnsupportedModel: see `check`.
        """
        self.check(layer)
        self._draw()

    def read(self, layer: str, read: Callable[[], Tensor]) -> Tensor:
        """Return the generator's state, as the module reads it.

        Raises:
            UnsupportedModel: see `check`.
        """
        self.check(layer)
        with no_dispatch():
            return read()

    def restore(self, state: Tensor, restore: Callable[[Tensor], None]) -> None:
        """Set a state that was read before."""
        with no_dispatch():
            restore(state)
            self._expected = torch.default_generator.get_state()

    def check(self, layer: str) -> None:
        """Refuse a module that has changed the generator other than by drawing from it or restoring a state that it has read.

        Raises:
            UnsupportedModel: names the layer that is running.
        """
        with no_dispatch():
            is_changed = not torch.equal(torch.default_generator.get_state(), self._expected)
        if is_changed:
            raise UnsupportedModel(
                layer,
                "it seeds torch's random generator, and a step would only draw from it",
                "seed it outside of the step",
            )

    def _draw(self) -> None:
        with no_dispatch():
            torch.rand(())
            self._expected = torch.default_generator.get_state()
