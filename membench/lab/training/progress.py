"""Progress of a training on a terminal: a bar over its steps, and after the first few of them the expected time."""

import sys
import time
from collections.abc import Callable

from membench.core.terminal import progress_bar
from membench.core.units import format_seconds
from membench.lab.training.recipe import Recipe

TIMED_STEPS = 5
"""From whose time the whole training's is extrapolated; the step before them, which loads kernels, does not count."""


class Progress:
    """Shows the progress of one training; prints nothing where standard error is not a terminal.

    Args:
        images: number of training images.
        synchronize: waits for the device, which may lag behind the host.
    """

    def __init__(self, recipe: Recipe, images: int, synchronize: Callable[[], None]) -> None:
        self._recipe = recipe
        self._steps = recipe.epochs * -(-images // recipe.batch_size)
        self._synchronize = synchronize
        self._done = 0
        self._start_s = 0.0
        title = f"seed {recipe.seed}"
        self._bar = progress_bar(title, "step", self._steps)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def step(self) -> None:
        """Count a step."""
        self._done += 1
        self._bar.update()
        if self._done not in (1, 1 + TIMED_STEPS) or not sys.stderr.isatty():
            return
        self._synchronize()
        now_s = time.perf_counter()
        if self._done > 1:
            expected_s = (now_s - self._start_s) / TIMED_STEPS * self._steps
            epochs = f"{self._recipe.epochs} epochs"
            text = f"  about {format_seconds(expected_s)} for {epochs}, without the tests after each"
            self._bar.write(text, file=sys.stderr)
        self._start_s = now_s
