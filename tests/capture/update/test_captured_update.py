"""Captured updates: states and temporaries as torch's optimizers allocate them, with known traffic."""

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from membench.capture.update.captured_update import CapturedUpdate
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.call import Value
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.step.optimizer import Update, WeightUpdate
from membench.models.muon import MuonAndAdamW
from membench.profiling.update_times import measure_update
from tests.helpers.steps.updates import OPTIMIZERS, WAYS_OF_OPTIMIZERS

CPU = torch.device("cpu")
SHAPES = [(300, 50), (300,), (16, 8, 3, 3), (500, 70), (70,), (70,), ()]
MATRICES = [(30, 20), (64, 20), (64, 64)]
Shapes = Iterable[tuple[int, ...]]


def graph_of(shapes: Shapes, *dtypes: torch.dtype) -> TaskGraph:
    """Return a graph of gradients alone."""
    kinds = dtypes or (torch.float32,)
    gradients = [
        (f"w{i}", Value(i, kinds[i % len(kinds)], shape, torch.empty(shape, device="meta").stride(), 0))
        for i, shape in enumerate(shapes)
    ]
    return TaskGraph("toy", 1, (), (), (), gradients=tuple(gradients))


def weights_of(shapes: Shapes, *dtypes: torch.dtype) -> dict[str, nn.Parameter]:
    kinds = dtypes or (torch.float32,)
    return {f"w{i}": nn.Parameter(torch.zeros(shape, dtype=kinds[i % len(kinds)])) for i, shape in enumerate(shapes)}


def update_of(optimizer: Any, shapes: Shapes = SHAPES, *dtypes: torch.dtype, **of_update: Any) -> Update:
    """Return the update on a GPU."""
    return CapturedUpdate(WeightUpdate(optimizer, **of_update))(graph_of(shapes, *dtypes))


def state_bytes(update: Update) -> int:
    return sum(size for states in update.states.values() for size in states.values())


def peak_bytes(update: Update) -> int:
    return max(task.workspace_bytes for task in update.tasks)


def check_like_torch(make: Callable[..., torch.optim.Optimizer], shapes: Shapes, *dtypes: torch.dtype) -> None:
    weights = weights_of(shapes, *dtypes)
    measured = measure_update(make(list(weights.values())), weights, CPU)
    captured = CapturedUpdate(WeightUpdate(make), device=CPU)(graph_of(shapes, *dtypes))
    assert captured.states == measured.states
    assert peak_bytes(captured) == measured.workspace_bytes


@pytest.mark.parametrize(("name", "options"), WAYS_OF_OPTIMIZERS)
def test_states_and_temporaries_are_torchs_to_the_byte(name: str, options: dict[str, bool]) -> None:
    decays = [0.0] if name == "Rprop" else [0.0, 0.1]
    for decay in decays:
        more = {} if name == "Rprop" else {"weight_decay": decay}
        check_like_torch(partial(OPTIMIZERS[name], lr=0.01, **options, **more), SHAPES)


@settings(max_examples=10, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=8),
    name=st.sampled_from(["Adam", "AdamW", "momentum", "RMSprop", "Adagrad"]),
    foreach=st.booleans(),
)
def test_weights_of_several_dtypes_are_updated_as_in_torch(
    shapes: list[tuple[int, int]], name: str, foreach: bool
) -> None:
    make = partial(OPTIMIZERS[name], foreach=foreach)
    check_like_torch(make, shapes, torch.float32, torch.bfloat16, torch.float64)


def test_a_learning_rate_may_be_a_tensor() -> None:
    for options in ({"foreach": False}, {"fused": True}):
        check_like_torch(lambda ws, o=options: torch.optim.AdamW(ws, lr=torch.tensor(0.1), **o), SHAPES)


def test_many_weights_that_are_updated_one_by_one_are_captured_by_a_few() -> None:
    block = [(40, 40), (40, 40), (90, 40), (40,), (40, 90)]
    shapes = [(200, 40), *(shape for _ in range(6) for shape in block), (40,), (200, 40)]
    for name in ("AdamW", "Adafactor", "RMSprop"):
        check_like_torch(partial(OPTIMIZERS[name], foreach=False), shapes)


def test_a_gpu_updates_all_weights_at_once_by_default() -> None:
    elements = sum(map(prod, SHAPES))
    [foreach] = update_of(torch.optim.AdamW).tasks
    loop = update_of(partial(torch.optim.AdamW, foreach=False))
    [fused] = update_of(partial(torch.optim.AdamW, fused=True)).tasks
    assert foreach.workspace_bytes == 4 * elements  # the roots of the second moments
    assert foreach.moved_bytes == 20 * 4 * elements == sum(task.moved_bytes for task in loop.tasks)
    assert fused.workspace_bytes == 0
    assert 0 <= fused.moved_bytes - 7 * 4 * elements <= 100  # the gradient, weight and states twice; numbers of steps
    assert len(loop.tasks) == len(SHAPES)
    largest = max(map(prod, SHAPES))
    assert 2 * 4 * largest <= peak_bytes(loop) <= 3 * 4 * largest
    assert fused.launches < foreach.launches < sum(task.launches for task in loop.tasks)


@pytest.mark.parametrize(("name", "passes"), [("sgd", 3), ("momentum", 8), ("adam", 18), ("adamw", 20)])
def test_a_name_is_torchs_optimizer(name: str, passes: int) -> None:
    update = CapturedUpdate(configuration.load("optimizer", name))(graph_of(SHAPES))
    assert sum(task.moved_bytes for task in update.tasks) == passes * 4 * sum(map(prod, SHAPES))


def test_states_on_the_host_are_not_the_devices() -> None:
    states = update_of(torch.optim.Adam).states["w0"]
    assert set(states) == {"exp_avg", "exp_avg_sq"}  # the number of steps is in host memory
    assert set(update_of(partial(torch.optim.Adam, fused=True)).states["w0"]) == {*states, "step"}


def test_an_instance_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).to(torch.float16)
    groups: list[dict[str, Any]] = [
        {"params": module[0].parameters(), "fused": True},
        {"params": [module[1].weight], "betas": (0.8, 0.9)},
    ]
    optimizer = torch.optim.AdamW(groups)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a counter around its step
    optimizer.register_step_post_hook(lambda *_: pytest.fail("the instance was stepped"))
    graph = TaskGraph("toy", 1, (), (), (), gradients=tuple(
        (name, Value(i, torch.float32, tuple(w.shape), w.stride(), 0))
        for i, (name, w) in enumerate(module.named_parameters())
    ))  # fmt: skip
    update = CapturedUpdate(WeightUpdate(optimizer), module)(graph)
    assert [task.weights for task in update.tasks] == [("0.weight", "0.bias"), ("1.weight",)]
    assert [task.workspace_bytes for task in update.tasks] == [0, 4 * 200]
    assert not optimizer.state and all(weight.grad is None for weight in module.parameters())
    with pytest.raises(MembenchError, match="not weights of the module"):
        CapturedUpdate(WeightUpdate(optimizer), nn.Linear(2, 2))


def test_an_instance_may_have_states_already() -> None:
    shapes = SHAPES[:-1]
    weights = weights_of(shapes)
    module = nn.Module()
    for name, weight in weights.items():
        module.register_parameter(name, weight)
        weight.grad = torch.ones_like(weight)
    for make in (torch.optim.Adagrad, torch.optim.Adam):
        optimizer = make(weights.values())
        optimizer.step()
        captured = CapturedUpdate(WeightUpdate(optimizer), module)(graph_of(shapes))
        assert captured == update_of(make, shapes)


def test_in_the_backward_pass_each_weight_has_an_optimizer() -> None:
    update = update_of(torch.optim.AdamW, in_backward=True)
    assert [task.weights for task in update.tasks] == [(f"w{i}",) for i in range(len(SHAPES))]
    assert [task.workspace_bytes for task in update.tasks] == [4 * prod(shape) for shape in SHAPES]
    assert update.states == update_of(torch.optim.AdamW).states


def test_an_average_is_a_copy_of_the_weights_and_reads_them() -> None:
    plain, averaged = update_of(torch.optim.SGD), update_of(torch.optim.SGD, ema=True)
    elements = sum(map(prod, SHAPES))
    assert state_bytes(averaged) - state_bytes(plain) == 4 * elements
    step, average = averaged.tasks
    assert (step,) == plain.tasks
    assert average.moved_bytes == 3 * 4 * elements and not average.uses_gradients
    assert average.states == {"ema"}


def test_products_of_matrices_are_tasks_of_their_own() -> None:
    update = update_of(torch.optim.Muon, MATRICES)
    products = [task for task in update.tasks if task.kind is Kind.LINEAR]
    assert len(products) == len(MATRICES) == len(update.tasks) - len(products)
    assert all(task.precision is Precision.BF16 for task in products)
    # of the Gram matrix, of its square and of both with the matrix, five times (Newton and Schulz's iteration)
    rows, columns = 20, 30
    assert products[0].operations == 5 * 2 * (rows * rows * columns * 2 + rows**3)


def test_muon_leaves_what_is_not_a_matrix_to_adamw() -> None:
    update = CapturedUpdate(configuration.load("optimizer", "muon"))(graph_of([(30, 20), (20,)]))
    assert set(update.states["w0"]) == {"momentum_buffer"}
    assert set(update.states["w1"]) == {"exp_avg", "exp_avg_sq"}


class Hoarder(torch.optim.SGD):
    """Keeps every gradient."""

    def step(self, closure: Any = None) -> None:
        self.kept = [*getattr(self, "kept", []), *(w.grad.clone() for w in self.param_groups[0]["params"])]


class Stopping(torch.optim.SGD):
    """Updates only where no gradient is infinite, and by a number that it reads of the device."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            if not torch.isinf(weight.grad).any().item():
                weight.sub_(weight.grad, alpha=1 / weight.grad.norm().item())


def test_an_optimizer_may_read_numbers() -> None:
    update = update_of(Stopping, [(100, 50)])
    assert update.tasks[0].moved_bytes > 3 * 4 * 5000  # it is not skipped


@pytest.mark.parametrize(
    ("optimizer", "shapes", "cause"),
    [
        (torch.optim.LBFGS, SHAPES, "LBFGS .*closure"),
        (torch.optim.Muon, SHAPES, "only supports 2D parameters"),
        (Hoarder, [(10,)], "Hoarder holds 40 bytes more after each update"),
        (partial(torch.optim.AdamW, speed=3), SHAPES, "speed"),
        (partial(torch.optim.Adam, lr=-1), SHAPES, "learning rate: -1"),
    ],
)
def test_what_cannot_be_captured_is_refused(optimizer: Any, shapes: Shapes, cause: str) -> None:
    with pytest.raises(MembenchError, match=cause):
        update_of(optimizer, shapes)


# ---- parts ----------------------------------------------------------------------------------------------


def layers_of(*widths: int) -> TaskGraph:
    """Return a graph of gradients alone: a layer with a bias for each width."""
    gradients = []
    for number, width in enumerate(widths):
        for name, shape in (("weight", (width, 64)), ("bias", (width,))):
            stride = torch.empty(shape, device="meta").stride()
            value = Value(len(gradients), torch.float32, shape, stride, 0)
            gradients.append((f"{number}.{name}", value))
    return TaskGraph("toy", 1, (), (), (), gradients=tuple(gradients))


def parts_of(optimizer: Any, *widths: int, **of_update: Any) -> Update:
    return CapturedUpdate(WeightUpdate(optimizer, **of_update))(layers_of(*widths))


def test_a_part_is_a_layer_and_small_layers_join_the_next() -> None:
    update = parts_of(torch.optim.AdamW, 1000, 2, 3, 1000, 1000, 1)
    assert [part.weights for part in update.parts] == [
        ("0.weight", "0.bias"),
        ("1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias"),
        ("4.weight", "4.bias", "5.weight", "5.bias"),
    ]
    [whole] = update.tasks
    for name in ("operations", "moved_bytes", "workspace_bytes"):
        assert sum(getattr(part, name) for part in update.parts) == getattr(whole, name)
    assert [part.launches for part in update.parts] == [whole.launches] * 3


def test_many_layers_are_fewer_parts() -> None:
    update = parts_of(torch.optim.SGD, *[8] * 600)
    assert len(update.parts) == 200


def test_a_part_moves_on_the_cpu_what_the_fused_kernel_moves() -> None:
    elements = 65 * 1000
    for optimizer, passes in (
        (torch.optim.AdamW, 7),  # the gradient, and weight and states twice
        (partial(torch.optim.Adagrad, foreach=True), 5),
        (partial(torch.optim.SGD, momentum=0.9), 5),
        (torch.optim.SGD, 3),
    ):
        update = parts_of(optimizer, 1000, 1000)
        for part in update.parts:
            assert 0 <= part.cpu_moved_bytes - 4 * passes * elements <= 100  # numbers of steps
            assert part.cpu_moved_bytes <= part.moved_bytes
    update = parts_of(torch.optim.Adamax, 1000, 1000)  # without a fused kernel
    assert all(part.cpu_moved_bytes > 4 * 7 * elements for part in update.parts)
    kept = parts_of(torch.optim.SGD, 1000, 1000, gradients="kept")
    assert all(part.cpu_moved_bytes == 4 * 4 * elements for part in kept.parts)  # zeroes them


class Clipping(torch.optim.SGD):
    """Divides by the norm of all gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = self.param_groups[0]["params"]
        norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
        for weight in weights:
            weight.sub_(weight.grad / norm)


class ClippingByNumber(torch.optim.SGD):
    """Divides by the largest norm of a gradient, as a number of Python."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = self.param_groups[0]["params"]
        norm = max(weight.grad.norm().item() for weight in weights)
        for weight in weights:
            weight.sub_(weight.grad, alpha=1 / norm)


class Averaging(torch.optim.SGD):
    """Keeps an average over all gradients, for the next step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = self.param_groups[0]["params"]
        self.average = vars(self).get("average", torch.zeros((), device=weights[0].device))
        for weight in weights:
            weight.sub_(self.average * weight.grad)
        for weight in weights:
            self.average.add_(weight.grad.mean())


class Counting(torch.optim.SGD):
    """Counts its steps in a group's options."""

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
        super().step(closure)


class Noisy(torch.optim.SGD):
    """Adds noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad + torch.randn_like(weight))


class Sharing(torch.optim.SGD):
    """Has one state for weights of a shape."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        shared: dict[Any, torch.Tensor] = {}
        for weight in self.param_groups[0]["params"]:
            if not self.state[weight]:
                self.state[weight]["shared"] = shared.setdefault(weight.shape, torch.zeros_like(weight))
            weight.sub_(self.state[weight]["shared"] + weight.grad)


@pytest.mark.parametrize("optimizer", [Clipping, ClippingByNumber, Averaging, Counting, Noisy, Sharing])
def test_weights_that_depend_on_each_other_are_updated_at_once(optimizer: Any) -> None:
    update = parts_of(optimizer, 1000, 1000)
    assert not update.is_divided
    assert update.parts is update.tasks
    assert all(part.cpu_moved_bytes for part in update.parts)


@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.AdamW, MuonAndAdamW])
@pytest.mark.parametrize("has_run", [False, True])
def test_an_instance_is_divided_whether_it_has_states_or_not(
    make: Callable[..., torch.optim.Optimizer], has_run: bool
) -> None:
    module = nn.Sequential(*(nn.Linear(64, width) for width in (100, 200, 300)))
    optimizer = make(module.parameters())
    for weight in module.parameters():
        weight.grad = torch.ones_like(weight)
    if has_run:
        optimizer.step()
    graph = layers_of(100, 200)  # the third layer may have states, and has no gradient
    found = CapturedUpdate(WeightUpdate(optimizer), module)(graph)
    assert len({part.weights for part in found.parts}) == 2
    assert found == CapturedUpdate(WeightUpdate(make))(graph)


def test_an_instance_with_hooks_is_updated_at_once() -> None:
    module = nn.Sequential(nn.Linear(64, 100), nn.Linear(64, 100))
    optimizer = torch.optim.SGD(module.parameters())
    assert CapturedUpdate(WeightUpdate(optimizer), module)(layers_of(100, 100)).is_divided
    optimizer.register_step_pre_hook(lambda *_: None)
    assert not CapturedUpdate(WeightUpdate(optimizer), module)(layers_of(100, 100)).is_divided
