"""A module that is traced for a GPU, on a machine that does not need to have one: what it asks of torch about the GPU.

- `torch.autocast` switches itself off where there is no GPU. For the CPU it is read as the GPU's: a module that was
  prepared on a machine without a GPU has that one, and tensors that it makes on the CPU are read as the GPU's as well.
- `save_on_cpu` would copy to the host, which a prediction does not price.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch.autograd.graph import save_on_cpu

from membench.core.errors import UnsupportedModel
from membench.core.libraries.one_thread import replaced

_log = logging.getLogger("membench")


@contextmanager
def as_on_a_gpu(layer_name: Callable[[], str]) -> Iterator[None]:
    """Run a trace as on a machine with a GPU.

    Args:
        layer_name: returns the name of the layer that is running.

    Raises:
        UnsupportedModel: a layer keeps tensors for the backward pass on the host.
    """

    def refuse(_: save_on_cpu) -> NoReturn:
        refuse_copy_to_host(layer_name())

    with ExitStack() as patches:
        for owner, name, value in (
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (save_on_cpu, "__enter__", refuse),
        ):
            patches.enter_context(replaced(owner, name, value))
        patches.enter_context(_autocast_of_the_gpu(layer_name))
        yield


def refuse_copy_to_host(layer: str) -> NoReturn:
    """Refuse a layer that copies a tensor to the host."""
    raise UnsupportedModel(
        layer,
        "it copies a tensor to the host within the step, and such a copy is not predicted",
        "leave the copy out, and choose a strategy that offloads, such as layrub_hybrid",
    )


@contextmanager
def _autocast_of_the_gpu(layer_name: Callable[[], str]) -> Iterator[None]:
    made, read_as_gpus, told = list[torch.autocast](), list[torch.autocast](), set[str]()
    initialize, enter = torch.autocast.__init__, torch.autocast.__enter__
    has_gpu = torch.cuda.is_available()

    def noting(context: torch.autocast, *args: Any, **kwargs: Any) -> None:
        made.append(context)
        initialize(context, *args, **kwargs)

    def entering(context: torch.autocast) -> Any:
        result = enter(context)
        if context.device == "cpu" and torch.is_autocast_enabled("cpu"):
            context.__exit__(None, None, None)
            context.device = "cuda"
            read_as_gpus.append(context)
            enter(context)
        is_off = context.device == "cuda" and not torch.is_autocast_enabled("cuda")
        if is_off and not (has_gpu or any(each is context for each in made)):
            told.add(layer_name())
        return result

    try:
        with replaced(torch.autocast, "__init__", noting), replaced(torch.autocast, "__enter__", entering):
            yield
    finally:
        for context in read_as_gpus:
            context.device = "cpu"
    if told:
        _log.warning(
            "torch.autocast was made before the capture, on a machine without a GPU, and is switched off: %s; if it "
            "casts on a GPU, make it within forward, or pass precision='amp_fp16' or 'amp_bf16'",
            ", ".join(sorted(told)),
        )
