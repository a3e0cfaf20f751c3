"""Transforms of torch around a wrapped module and a compiled step: the bits of the module, or one sentence."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd import functional as derivatives
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy

import membench
from membench.core.errors import MembenchError
from membench.core.libraries.torch_internals import FakeTensorMode

pytestmark = pytest.mark.filterwarnings("ignore")
INPUTS, TANGENTS, TARGETS = torch.randn(4, 5), torch.randn(4, 5), torch.randint(3, (4,))
Called = Callable[[Tensor], Tensor]


def _tangent(called: Called, dual: Callable[[], Tensor]) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(called(dual())).tangent


def _tangent_of_weights(module: nn.Module) -> Any:
    with forward_ad.dual_level():
        weights = {
            name: forward_ad.make_dual(weight.detach(), torch.ones_like(weight))
            for name, weight in module.named_parameters()
        }
        return forward_ad.unpack_dual(functional_call(module, weights, (INPUTS,))).tangent


def _with_other_weights(module: nn.Module) -> Tensor:
    weights = {name: weight.detach() * 2 for name, weight in module.named_parameters()}
    return functional_call(module, weights, (INPUTS,))


def _fake(called: Called, *, is_given: bool) -> object:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return called(mode.from_tensor(INPUTS) if is_given else INPUTS)


def _trained(called: Called) -> tuple[Tensor, Tensor]:
    inputs = INPUTS.clone().requires_grad_()
    return inputs, called(inputs)


def _of_batch(called: Called) -> Tensor:
    inputs, output = _trained(called)
    given = torch.stack([torch.ones_like(output), torch.zeros_like(output)])
    return torch.autograd.grad(output, inputs, given, is_grads_batched=True)[0]


def _twice(called: Called) -> None:
    _, output = _trained(called)
    output.sum().backward(retain_graph=True)
    output.sum().backward()


def _with_hook(called: Called) -> Tensor:
    inputs = INPUTS.clone().requires_grad_()
    inputs.register_hook(lambda gradient: gradient * 3)
    called(inputs).sum().backward()
    assert inputs.grad is not None
    return inputs.grad


def _of_each(called: Called) -> Called:
    return lambda inputs: called(inputs).sum()


def _without_tangents(module: nn.Module) -> Tensor:
    with forward_ad.dual_level():
        return module(INPUTS)


class _Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs) * 2


OF_BOTH: dict[str, Callable[[Called], Any]] = {
    "tangent": lambda f: _tangent(f, lambda: forward_ad.make_dual(INPUTS, TANGENTS)),
    "grad": lambda f: grad(_of_each(f))(INPUTS),
    "vjp": lambda f: vjp(f, INPUTS),
    "jvp": lambda f: jvp(f, (INPUTS,), (TANGENTS,)),
    "linearize": lambda f: linearize(f, INPUTS),
    "jacrev": lambda f: jacrev(f)(INPUTS),
    "jacfwd": lambda f: jacfwd(f)(INPUTS),
    "hessian": lambda f: hessian(_of_each(f))(INPUTS),
    "vmap": lambda f: vmap(f)(INPUTS),
    "functionalize": lambda f: torch.func.functionalize(f)(INPUTS),
    "jit.trace": lambda f: torch.jit.trace(f, INPUTS),
    "make_fx": lambda f: make_fx(f)(INPUTS),
    "make_fx, fake": lambda f: make_fx(f, tracing_mode="fake")(INPUTS),
    "make_fx, symbolic": lambda f: make_fx(f, tracing_mode="symbolic")(INPUTS),
    "fake": lambda f: _fake(f, is_given=True),
    "fake mode": lambda f: _fake(f, is_given=False),
}
"""Transforms of a function of the inputs, all of which are refused."""

REFUSED: dict[str, Callable[[Any], Any]] = OF_BOTH | {
    "tangent without gradients": torch.no_grad()(OF_BOTH["tangent"]),
    "tangent of weights": _tangent_of_weights,
    "grad of weights": lambda m: grad(lambda w: functional_call(m, w, (INPUTS,)).sum())(dict(m.named_parameters())),
    "batch of gradients": _of_batch,
    "jacobian": lambda m: derivatives.jacobian(m, INPUTS),
    "jacobian, vectorized": lambda m: derivatives.jacobian(m, INPUTS, vectorize=True),
    "jacobian, forward": lambda m: derivatives.jacobian(m, INPUTS, vectorize=True, strategy="forward-mode"),
    "fx": torch.fx.symbolic_trace,
    "fx, around it": lambda m: torch.fx.symbolic_trace(_Around(m)),
    "jit.script": torch.jit.script,
    "export": lambda m: torch.export.export(m, (INPUTS,)),
    "onnx": lambda m: torch.onnx.export(m, (INPUTS,), io.BytesIO(), dynamo=False),
    "pickle": pickle.dumps,
    "save": lambda m: torch.save(m, io.BytesIO()),
    "copy": copy.copy,
    "backward twice": _twice,
}

RIGHT: dict[str, Callable[[Any], Tensor]] = {
    "no tangents": _without_tangents,
    "functional_call": _with_other_weights,
    "vjp of autograd": lambda m: derivatives.vjp(m, INPUTS, torch.ones(4, 3))[1],
    "hvp of autograd": lambda m: derivatives.hvp(_of_each(m), INPUTS, TANGENTS)[1],
    "compile": lambda m: torch.compile(m, backend="eager")(INPUTS),
    "deepcopy": lambda m: copy.deepcopy(m)(INPUTS),
    "hook of a tensor": _with_hook,
    "inference mode": lambda m: torch.inference_mode()(m)(INPUTS).clone(),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def _check_usable(module: nn.Module, wrapped: nn.Module) -> None:
    assert torch.equal(wrapped(INPUTS), module(INPUTS))


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_wrapped_module_is_refused_in_a_sentence(name: str, is_captured: bool) -> None:
    module = network()
    wrapped = membench.wrap(module, strategy="vdnn_all", example=INPUTS if is_captured else None)
    with pytest.raises(MembenchError):
        REFUSED[name](wrapped)
    _check_usable(module, wrapped)


@pytest.mark.parametrize("name", RIGHT)
def test_a_wrapped_module_gives_the_modules_bits(name: str) -> None:
    module = network()
    expected = RIGHT[name](module)
    module.zero_grad(set_to_none=True)
    wrapped = membench.wrap(module, strategy="vdnn_all")
    assert torch.equal(RIGHT[name](wrapped), expected)
    _check_usable(module, wrapped)


@pytest.mark.parametrize("options", [{}, {"micro_batch": 2}, {"shapes": "any"}])
@pytest.mark.parametrize("name", OF_BOTH)
def test_a_compiled_step_is_refused_in_a_sentence(name: str, options: dict[str, Any]) -> None:
    module = network()
    with warnings.catch_warnings():
        step = membench.compile(module, cross_entropy, (INPUTS, TARGETS), strategy="vdnn_all", **options)
        before = step(INPUTS, TARGETS)
        with pytest.raises(MembenchError):
            OF_BOTH[name](lambda inputs: step(inputs, TARGETS))
        assert torch.equal(step(INPUTS, TARGETS), before)
    step.close()
