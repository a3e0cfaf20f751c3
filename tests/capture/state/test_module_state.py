"""A step does not go on computing what its module no longer does."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

import membench
from membench.capture.state.module_state import ModuleState, preserve_state
from membench.core.errors import ModuleChanged, UnsupportedModel
from membench.core.libraries.torch_internals import module_hooks, module_members
from membench.steps.real.compiled_step import CompiledStep

DATA = torch.randn(4, 3), torch.randint(2, (4,))
HOOKS: dict[str, RemovableHandle] = {}


class Sloped(nn.Module):
    """Keeps its number behind a property."""

    def __init__(self) -> None:
        super().__init__()
        self._slope, self._calls = 1.0, 0

    @property
    def slope(self) -> float:
        return self._slope

    @slope.setter
    def slope(self, slope: float) -> None:
        self._slope = slope

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self._slope


@pytest.fixture
def module() -> Iterator[nn.Module]:
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2), Sloped())
    HOOKS["4"] = module[4].register_forward_hook(lambda layer, inputs, output: output * 2)
    yield module
    while HOOKS:
        HOOKS.popitem()[1].remove()


def step_of(module: nn.Module) -> CompiledStep:
    step = membench.compile(module, nn.CrossEntropyLoss(), DATA)
    assert isinstance(step, CompiledStep)
    return step


CHANGES: dict[str, tuple[Callable[[nn.Sequential], object], str]] = {
    "its mode": (lambda module: module.eval(), "the module is in evaluation mode, but .* in training mode"),
    "a layer's mode": (lambda module: module[2].eval(), "layer '2' is in evaluation mode"),
    "a layer": (lambda module: module.__setitem__(3, nn.Linear(5, 2)), "'3' of the module is not the object"),
    "one layer more": (lambda module: module.append(nn.ReLU()), "'5' of the module is not the object"),
    "one layer less": (lambda module: module.__delitem__(3), "'3' of the module is not the object"),
    "layers in another order": (
        lambda module: module._modules.update({"0": module._modules.pop("0")}),
        "the layers' order in the module",
    ),
    "a weight": (lambda module: setattr(module[0], "bias", None), "'bias' of layer '0' is not the object"),
    "a buffer": (
        lambda module: setattr(module[1], "running_mean", torch.zeros(5)),
        "'running_mean' of layer '1' is not the object",
    ),
    "assigned weights": (
        lambda module: module.load_state_dict(
            {name: value.clone() for name, value in module.state_dict().items()}, assign=True
        ),
        "'weight' of layer '0' is not the object that the step was captured with; change values in place",
    ),
    "a dtype": (
        lambda module: module[0].double(),
        r"'0.weight' is a cpu tensor of shape \(5, 3\) and torch.float64 with .*, but was .* torch.float32",
    ),
    "a hook": (
        lambda module: module[0].register_forward_hook(lambda *_: None),
        "the hooks of layer '0' have changed since the step was captured",
    ),
    "another hook in the place of one": (
        lambda module: (HOOKS.popitem()[1].remove(), module[4].register_forward_hook(lambda *_: None)),
        "the hooks of layer '4' have changed",
    ),
    "a hook of every module": (
        lambda module: HOOKS.update(every=register_module_forward_hook(lambda *_: None)),
        "the hooks of every module have changed",
    ),
    "a hook on the backward pass": (
        lambda module: module.register_full_backward_hook(lambda *_: None),
        "the hooks of the module have changed",
    ),
    "a number behind a property": (lambda module: setattr(module[4], "slope", 2.0), "'4' has _slope=2.0, but"),
    "a number": (
        lambda module: setattr(module[2], "p", 0.1),
        "layer '2' has p=0.1, but had 0.5 when the step was captured; compile again",
    ),
    "a number that goes": (lambda module: setattr(module[1], "momentum", None), "has momentum=None, but had"),
    "the layout of a weight": (
        lambda module: setattr(module[0].weight, "data", module[0].weight.data.t().contiguous().t()),
        r"'0.weight' .* with strides \(1, 5\), but was .* with strides \(3, 1\)",
    ),
    "the shape of a weight where it lies": (
        lambda module: setattr(module[0].bias, "data", module[0].bias.data[:2]),
        r"'0.bias' is a cpu tensor of shape \(2,\) .*, but was a cpu tensor of shape \(5,\)",
    ),
    "a frozen weight": (lambda module: module[3].requires_grad_(False), "weight '3.weight' is frozen, but was trained"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_of_a_module_that_has_changed_is_refused(change: str, module: nn.Sequential) -> None:
    step = step_of(module)
    step(*DATA)
    module.zero_grad()
    make, message = CHANGES[change]
    make(module)
    with pytest.raises(ModuleChanged, match=message):
        step(*DATA)
    assert all(weight.grad is None for weight in module.parameters())


@pytest.mark.parametrize("layer", range(6))
def test_an_item_more_or_less_in_any_dict_of_any_layer_is_refused(layer: int, module: nn.Sequential) -> None:
    of = [*module.modules()][layer]
    state = ModuleState(module, nn.MSELoss())
    changed = 0
    for items in (*module_members(of), *module_hooks(of)):
        for key in ("new", *items):
            before = dict(items)
            items.pop(key, None) if key in items else items.update({key: None})
            with pytest.raises(ModuleChanged):
                state.check()
            items.clear()
            items.update(before)
            state.check()
            changed += 1
    assert changed >= 7


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "3.bias"])
def test_a_hook_or_another_state_of_any_weight_is_refused(name: str, module: nn.Sequential) -> None:
    module[1].requires_grad_(False)
    state, weight = ModuleState(module, nn.MSELoss()), module.get_parameter(name)
    for register in (weight.register_hook, weight.register_post_accumulate_grad_hook):
        for _ in range(2):  # the second goes into the dict that the first has made
            hook = register(lambda _: None)
            with pytest.raises(UnsupportedModel, match=name):
                state.check()
            hook.remove()
            state.check()
    for changed, words in ((weight, f"{name}' is frozen"), (module[1].bias, "1.bias' is trained")):
        changed.requires_grad_(not changed.requires_grad)
        with pytest.raises(ModuleChanged, match=words):
            state.check()
        changed.requires_grad_(not changed.requires_grad)
        state.check()


class Weighted:
    """A loss that is not a module."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.factor * nn.functional.cross_entropy(outputs, targets)


def test_a_step_whose_loss_has_changed_is_refused(module: nn.Sequential) -> None:
    weighted, smoothed = Weighted(), nn.CrossEntropyLoss(weight=torch.ones(2))
    steps = [membench.compile(module, loss, DATA) for loss in (weighted, smoothed)]
    for step in steps:
        step(*DATA)
    weighted.factor = 0.5
    smoothed.label_smoothing = 0.1
    for step, message in zip(steps, ("factor=0.5, but had 1.0", "label_smoothing=0.1, but had 0.0"), strict=True):
        with pytest.raises(ModuleChanged, match=f"layer 'loss' has {message}"):
            step(*DATA)
    smoothed.label_smoothing, smoothed.weight = 0.0, torch.zeros(2)
    with pytest.raises(ModuleChanged, match="'weight' of layer 'loss' is not the object"):
        steps[1](*DATA)


def test_what_a_module_notes_about_itself_may_change(module: nn.Sequential) -> None:
    module._epoch = 1
    step = step_of(module)
    module._epoch, module.best_accuracy = 2, 0.5
    module[4]._calls = 5
    step(*DATA)
    assert module[0].weight.grad is not None


def test_what_is_not_read_may_change(module: nn.Sequential) -> None:
    module.scale, module[0].extra = 1.0, {"rates": [1.0]}
    step = step_of(module)
    module.scale, module[0].activation = torch.ones(2), torch.tanh
    module[0].extra["rates"][0] = 2.0
    module[0].others = [nn.ReLU(), 2]
    step(*DATA)
    assert module[0].weight.grad is not None


def test_values_may_change_and_modes_may_be_switched_back(module: nn.Sequential) -> None:
    step = step_of(module)
    module.load_state_dict({name: value.clone() for name, value in module.state_dict().items()})
    module.eval()
    module(DATA[0])
    module.train()
    step(*DATA)
    assert module[0].weight.grad is not None


def test_inference_accepts_frozen_weights_and_hooks_on_gradients(module: nn.Sequential) -> None:
    module[0].weight.register_hook(lambda gradient: gradient)
    state = ModuleState(module, None)
    module.requires_grad_(False)
    state.check()
    module.eval()
    with pytest.raises(ModuleChanged):
        state.check()


def test_a_hook_on_a_gradient_is_refused(module: nn.Sequential) -> None:
    module[0].weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(UnsupportedModel, match=r"layer '0\.weight' is not supported: its gradient has a hook"):
        step_of(module)


def test_a_hook_after_a_gradient_is_refused(module: nn.Sequential) -> None:
    module[3].bias.register_post_accumulate_grad_hook(lambda weight: None)
    with pytest.raises(UnsupportedModel, match=r"layer '3\.bias'"):
        step_of(module)


def test_a_run_that_fails_leaves_gradients_buffers_and_random_numbers_as_they_were(module: nn.Sequential) -> None:
    module(DATA[0]).sum().backward()
    gradients = [weight.grad for weight in module.parameters()]
    buffers = [buffer.clone() for buffer in module.buffers()]
    generator = torch.get_rng_state()

    def fail() -> None:
        with preserve_state(module, torch.device("cpu")):
            assert all(weight.grad is None for weight in module.parameters())
            module(2 * DATA[0]).sum().backward()
            raise RuntimeError("no such luck")

    with pytest.raises(RuntimeError):
        fail()
    assert all(weight.grad is kept for weight, kept in zip(module.parameters(), gradients, strict=True))
    assert all(map(torch.equal, module.buffers(), buffers))
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("strategy", ["eager", "layrub_hybrid"])
def test_another_default_dtype_is_refused_and_the_former_one_runs_again(strategy: str) -> None:
    net, batch = nn.Linear(4, 3), (torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    step = membench.compile(net, nn.CrossEntropyLoss(), batch, strategy=strategy)
    before = step(*batch)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ModuleChanged, match="torch's default dtype was torch.float32 when the step was captured"):
            step(*batch)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(step(*batch), before)
