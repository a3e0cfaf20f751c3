"""Regions of `torch.utils.checkpoint` in a trace: the backward pass runs them again, on the traced tensors.

torch's own code runs, of both kinds of regions, so that what is kept, what runs again, where that ends (early stop),
and when memory is given back are those of a program. Here the second run is marked as such, and runs under the same
modes as the first.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from membench.capture.dissolve import is_of_state
from membench.capture.gpu.virtual_gpu import VirtualGpu
from membench.capture.operators.functions import StoppedInDropout
from membench.capture.recorder import Recorder
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Call, Value
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, Kind, Role, Task
from membench.core.libraries.one_thread import replaced
from membench.core.libraries.random_operators import DEFAULT_GENERATOR, READ_STATE, SET_STATE, default_generator_seen_as
from membench.core.libraries.torch_contexts import autocast, autocast_dtype, regions_run_by, without_autocast
from membench.core.libraries.torch_internals import no_dispatch, storage_address, tensors_of


@contextmanager
def traced_regions(
    recorder: Recorder, gpu: VirtualGpu | None, functions: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    """Trace the regions of a step, and states of the random generator that it reads and restores.

    Args:
        gpu: see `AsOperators`.
        functions: returns the context in which functions are traced.
    """

    def again(function: Callable[..., Any]) -> Callable[..., Any]:
        region = recorder.layers.region()
        dtype = None if gpu is None else autocast_dtype(gpu.device.type)

        def run(*args: Any, **kwargs: Any) -> Any:
            is_nested = recorder.layers.is_recomputing
            with ExitStack() as contexts:
                contexts.enter_context(recorder.layers.again(region))
                if not is_nested:
                    contexts.enter_context(functions())
                if gpu is not None:
                    contexts.enter_context(gpu.leaves(tensors_of((args, kwargs))))
                    contexts.enter_context(_autocast(gpu.device.type, dtype))
                try:
                    return function(*args, **kwargs)
                except StoppedInDropout:
                    recorder.stopped.add(next(t.index for t in reversed(recorder.tasks) if not is_of_state(t)))
                    raise

        return run

    generators = _Generators(recorder, on_cpu=gpu is None)
    with generators.traced(), regions_run_by(again, recorder.enter_backward, on_device=gpu is None):
        yield


def _autocast(device_type: str, dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """Cast as the first run did; torch restores that only for devices of this machine."""
    return without_autocast(device_type) if dtype is None else autocast(device_type, dtype)


class _Generators:
    """Records where a step reads and sets the state of torch's default generators.

    Args:
        on_cpu: the states are memory of the device, the CPU.
    """

    def __init__(self, recorder: Recorder, *, on_cpu: bool) -> None:
        self._recorder = recorder
        self._on_cpu = on_cpu

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Let this thread find traced functions in the place of torch's, and draw no numbers of other threads."""
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        with ExitStack() as patches:
            patches.enter_context(default_generator_seen_as(self._functions("cpu", DEFAULT_GENERATOR)))
            if accelerator:
                owner = torch.get_device_module(accelerator)
                for name, function in self._functions(accelerator.type, owner).items():
                    patches.enter_context(replaced(owner, name, function))
            yield

    def _functions(self, device_type: str, owner: Any) -> dict[str, Callable[..., Any]]:
        """Return by name what a trace calls in place of a generator's methods, or of a device module's functions."""
        reads = ("get_state", "get_rng_state")
        restores = ("set_state", "set_rng_state")
        found: dict[str, Callable[..., Any]] = {
            **{name: partial(self._read, device_type, getattr(owner, name, None)) for name in reads},
            **dict.fromkeys(restores, partial(self._restore, device_type)),
            **dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all"), self._refuse),
        }
        return {name: function for name, function in found.items() if hasattr(owner, name)}

    def _refuse(self, *_: Any) -> NoReturn:
        raise UnsupportedModel(
            self._recorder.layer_name,
            "it seeds torch's random generator, and a step would only draw from it",
            "seed it outside of the step",
        )

    def _read(self, device_type: str, read: Any, *args: Any) -> Tensor:
        recorder = self._recorder
        with no_dispatch():
            state: Tensor = read(*args)
        block = recorder.external(self._name("random state"), state, Role.INTERNAL)
        if not self._on_cpu:  # in host memory
            recorder.blocks[block] = replace(recorder.blocks[block], size_bytes=0)
        self._record("random state", Call(READ_STATE, (device_type,), (), (self._value(state),)), creates=block)
        return state

    def _restore(self, device_type: str, state: Tensor, *_: Any) -> None:
        if storage_address(state.untyped_storage()) not in self._recorder.lifetimes.blocks:
            raise UnsupportedModel(
                self._recorder.layer_name,
                "it restores a state of torch's random generator that was read outside of the step",
                "restore it outside of the step",
            )
        self._record("set random state", Call(SET_STATE, (self._value(state), device_type), (), (None,)))

    def _value(self, state: Tensor) -> Value:
        value = self._recorder.value(state)
        return value if self._on_cpu else replace(value, shape=(0,))

    def _name(self, name: str) -> str:
        again = RECOMPUTED_SUFFIX if self._recorder.layers.is_recomputing else ""
        return f"{self._recorder.layer_name}:{name}{again}"

    def _record(self, name: str, call: Call, *, creates: int | None = None) -> None:
        recorder = self._recorder
        created = () if creates is None else (creates,)
        [reads] = [tuple(each.block for each in call.args if isinstance(each, Value))]
        recorder.tasks.append(
            Task(
                index=len(recorder.tasks),
                name=self._name(name),
                kind=Kind.OTHER,
                phase=recorder.phase,
                layer=max(recorder.layers.current, 0),
                reads=reads,
                writes=created,
                creates=created,
                random=True,
                call=call,
            )
        )
