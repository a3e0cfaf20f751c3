"""Captures in several threads, and plain training next to them: bits of each alone, and torch as it was afterwards."""

from collections.abc import Callable, Iterator
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import membench
from membench.core.errors import MembenchError, UnsupportedModel
from tests.helpers.shared_state import shared_state

THREADS = 4
INPUTS, TARGETS = torch.randn(6, 8), torch.randint(4, (6,))


class Regions(nn.Module):
    """Regions of both kinds, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8)) for _ in range(2)
        )
        self.last = nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = checkpoint(self.first, inputs.requires_grad_(self.training), use_reentrant=True)
        return self.last(checkpoint(self.second, inputs, use_reentrant=False))


def network(seed: int) -> nn.Module:
    """Return a network whose weights are made without torch's default generator."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 4))
    generator = torch.Generator().manual_seed(seed)
    module = module.to_empty(device="cpu")
    for weight in module.parameters():
        nn.init.normal_(weight, generator=generator)
    return module


@pytest.fixture(autouse=True)
def torch_is_as_before() -> Iterator[None]:
    membench.compile(network(0), functional.cross_entropy, (INPUTS, TARGETS)).close()  # imports
    before = shared_state()
    yield
    assert shared_state() == before


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Return what functions return in threads of their own; raise the first error."""
    start, found = Barrier(len(functions)), dict[int, Any]()

    def run(position: int, function: Callable[[], Any]) -> None:
        start.wait()
        try:
            found[position] = function()
        except BaseException as error:
            found[position] = error

    threads = [Thread(target=run, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found.values():
        if isinstance(result, BaseException):
            raise result
    return [found[position] for position in range(len(functions))]


def operators(seed: int) -> list[str]:
    step = membench.compile(network(seed), functional.cross_entropy, (INPUTS, TARGETS), strategy="vdnn_all")
    step.close()
    return [str(each) for each in step.schedule.instructions]


def test_threads_that_compile_at_once_have_the_plans_of_each_alone() -> None:
    expected = [operators(seed) for seed in range(THREADS)]
    assert at_once(*(lambda seed=seed: operators(seed) for seed in range(THREADS))) == expected


def gradients(module: nn.Module, called: nn.Module) -> list[Tensor | None]:
    functional.cross_entropy(called(INPUTS), TARGETS).backward()
    return [weight.grad for weight in module.parameters()]


def test_wrapped_modules_are_first_called_in_threads() -> None:
    modules = [network(seed).eval() for seed in range(THREADS)]
    expected = [gradients(module, module) for module in modules]
    for module in modules:
        module.zero_grad(set_to_none=True)
    wrapped = [membench.wrap(module, strategy="vdnn_all") for module in modules]
    pairs = zip(modules, wrapped, strict=True)
    found = at_once(*(lambda pair=pair: gradients(*pair) for pair in pairs))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for each in wrapped:
        each.wrapped_calls.close()


def test_one_wrapped_module_is_first_called_in_many_threads_with_several_shapes() -> None:
    module = network(1).eval()
    wrapped = membench.wrap(module, strategy="vdnn_all")
    with torch.no_grad():
        expected = [module(INPUTS[: 1 + at % 3]) for at in range(2 * THREADS)]
    found = at_once(*(lambda at=at: wrapped(INPUTS[: 1 + at % 3]) for at in range(2 * THREADS)))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(wrapped.wrapped_calls.steps) == 3
    wrapped.wrapped_calls.close()


def trained(steps: int) -> list[float]:
    """Return the losses of plain training that draws, reads and restores torch's generator, and seeds it."""
    torch.manual_seed(3)
    module = Regions()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    losses = []
    for _ in range(steps):
        with torch.random.fork_rng(devices=[]):
            torch.rand(3)
        loss = functional.cross_entropy(module(INPUTS.clone()), TARGETS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        torch.set_rng_state(torch.get_rng_state())
        torch.rand(1, generator=torch.default_generator)
        torch.default_generator.get_state()
    return losses


@pytest.mark.parametrize("module", [Regions, lambda: network(1)])
def test_plain_training_beside_captures_has_its_own_bits(module: Callable[[], nn.Module]) -> None:
    captured = module()
    expected = trained(120)

    def capture() -> int:
        for at in range(4):
            batch = INPUTS[: 2 + at], TARGETS[: 2 + at]
            membench.compile(captured, functional.cross_entropy, batch).close()
            membench.predict(captured, functional.cross_entropy, batch, device="t4")
        return 1

    assert at_once(lambda: trained(120), capture) == [expected, 1]


class Failing(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        checkpoint(nn.Linear(8, 8), inputs, use_reentrant=False)
        raise ValueError("in the middle")


def test_a_capture_that_fails_leaves_torch_as_it_was() -> None:
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="in the middle"):
            membench.compile(Failing(), functional.cross_entropy, (INPUTS, TARGETS))
        with pytest.raises(UnsupportedModel, match="in the middle"):
            membench.predict(Failing(), functional.cross_entropy, (INPUTS, TARGETS), device="t4")


SEEDS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.manual_seed(1),
    "imported": lambda: torch.random.manual_seed(1),
    "of its own": torch.seed,
    "the generator": lambda: torch.default_generator.manual_seed(1),
    "restored": lambda: torch.random.set_rng_state(_STATE),
    "the generator's state": lambda: torch.default_generator.set_state(_STATE),
}
_STATE = torch.get_rng_state()


@pytest.mark.parametrize("name", SEEDS)
def test_a_module_that_seeds_is_refused_and_the_programs_numbers_go_on(name: str) -> None:
    class Seeding(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            SEEDS[name]()
            return super().forward(inputs) * torch.rand(4)

    module = Seeding(8, 4)
    torch.manual_seed(1)  # as the module does
    state = torch.get_rng_state()
    with pytest.raises(MembenchError, match=r"it seeds|read outside of the step"):
        membench.compile(module, functional.cross_entropy, (INPUTS, TARGETS))
    assert torch.equal(torch.get_rng_state(), state)
