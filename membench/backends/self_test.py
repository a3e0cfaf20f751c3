"""What the backend of accelerators takes for granted, tried on a device: ``python -m membench.backends.self_test``."""

import sys
from collections.abc import Callable

import torch

from membench.backends.pinned import PinnedMemory
from membench.core.errors import one_line
from membench.core.libraries.random_operators import random_state, set_random_state
from membench.core.units import MIB

_LARGE_BYTES = 256 * MIB
"""Of copies that are under way for longer than a call takes."""
_SIZE = 1024
"""Of matrices whose product takes longer than a call."""


def _a_stream_waits_for_the_event_of_another(device: torch.device) -> bool:
    first, second = torch.Stream(device), torch.Stream(device)
    torch.accelerator.synchronize(device)
    with first:
        matrix = torch.ones(_SIZE, _SIZE, device=device)
        for _ in range(20):
            matrix = matrix @ matrix / _SIZE
        made = first.record_event()
    second.wait_event(made)
    with second:
        copy = matrix.clone()
    second.synchronize()
    return bool((copy == 1).all())


def _the_host_goes_on_while_locked_memory_is_copied(device: torch.device) -> bool:
    pinned = PinnedMemory(device)
    target = torch.empty(_LARGE_BYTES, dtype=torch.uint8, device=device)
    source = pinned.take(_LARGE_BYTES).fill_(7)
    torch.accelerator.synchronize(device)
    target.copy_(source, non_blocking=True)
    is_under_way = not torch.accelerator.current_stream(device).query()
    is_copied = bool((target == 7).all())
    torch.accelerator.synchronize(device)
    pinned.close()
    return is_under_way and is_copied


def _memory_is_counted_as_requested(device: torch.device) -> bool:
    torch.accelerator.reset_peak_memory_stats(device)
    before = torch.accelerator.memory_stats(device)["requested_bytes.all.current"]
    held = torch.empty(1000, dtype=torch.uint8, device=device)
    del held
    return bool(torch.accelerator.memory_stats(device)["requested_bytes.all.peak"] - before == 1000)


def _freed_memory_serves_the_next_request_of_its_stream(device: torch.device) -> bool:
    torch.accelerator.synchronize(device)
    first = torch.empty(_SIZE, device=device)
    address = first.data_ptr()
    del first
    return torch.empty(_SIZE, device=device).data_ptr() == address


def _random_numbers_are_drawn_again_from_a_saved_state(device: torch.device) -> bool:
    state = random_state(device.type)
    drawn = torch.rand(_SIZE, device=device)
    set_random_state(state, device.type)
    return torch.rand(_SIZE, device=device).equal(drawn)


def _a_product_has_the_same_bits_twice(device: torch.device) -> bool:
    matrix = torch.rand(_SIZE, _SIZE, device=device)
    return (matrix @ matrix).equal(matrix @ matrix)


Promise = Callable[[torch.device], bool]
PROMISES: tuple[Promise, ...] = (
    _a_stream_waits_for_the_event_of_another,
    _the_host_goes_on_while_locked_memory_is_copied,
    _memory_is_counted_as_requested,
    _freed_memory_serves_the_next_request_of_its_stream,
    _random_numbers_are_drawn_again_from_a_saved_state,
    _a_product_has_the_same_bits_twice,
)


def broken_promises(device: torch.device) -> dict[str, str]:
    """Return what does not hold on a device, in words, with the error, if any."""
    broken = {}
    for promise in PROMISES:
        try:
            if not promise(device):
                broken[_words(promise)] = ""
        except Exception as error:  # of torch, a driver or a library
            broken[_words(promise)] = one_line(error)
    return broken


def _words(promise: Promise) -> str:
    return promise.__name__.replace("_", " ").strip()


def main() -> int:
    """Print what holds on the present accelerator and what does not; return 1 if anything does not."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        print("the self-test needs a GPU, and torch sees none")
        return 1
    broken = broken_promises(device)
    for promise in PROMISES:
        words = _words(promise)
        verdict = "does not hold: " if words in broken else "holds:         "
        print(f"{verdict}{words}{': ' if broken.get(words) else ''}{broken.get(words, '')}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
