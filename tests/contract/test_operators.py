"""torch's operators: a step gives the bits of plain PyTorch, or is refused in one sentence."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from membench.capture.capture import Captures
from membench.conformance.results import Results, run_step
from membench.core.errors import UnsupportedModel
from membench.core.step.workload import Workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from tests.helpers.networks.contract import COST, Layer


def results_of(work: Workload) -> tuple[Results, Results]:
    """Return what plain PyTorch computes, and what the second call of a step does."""

    def plain() -> Tensor:
        assert work.loss is not None
        loss = work.loss(work.module(*work.inputs))
        loss.backward()
        return loss

    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}
    expected = run_step(work, plain, buffers)
    step = build_step(Captures(work), COST, StepRequest(strategies()["eager"]()))
    run_step(work, lambda: step(work.inputs, ()), buffers)
    found = run_step(work, lambda: step(work.inputs, ()), buffers)
    step.close()
    return expected, found


def _written(tensor: Tensor, at: Any, value: Any) -> Tensor:
    tensor[at] = value
    return tensor


def _in_a_gradient(inputs: Tensor) -> Tensor:
    total = inputs.square().sum()
    [gradient] = torch.autograd.grad(total, inputs, create_graph=True)
    return gradient.norm() + total


Function = Callable[[Layer, Tensor], Any]
CAPTURED: dict[str, Function] = {
    "means in a stack": lambda m, x: torch.stack([row.mean() for row in x]).std(),
    "means at constants": lambda m, x: torch.stack([x[i].mean() for i in torch.arange(3)]),
    "number of a constant": lambda m, x: sum(x * share.item() for share in torch.linspace(0, 1, 3)),
    "branch on a constant": lambda m, x: x if torch.tensor(x.shape).prod() > 3 else x.sum(),
    "places of a constant": lambda m, x: x[torch.eye(4).nonzero()[:, 1]],
    "repeats of a constant": lambda m, x: x.repeat_interleave(torch.tensor([1, 2, 1, 1]), 0),
    "covariance": lambda m, x: torch.cov(x),
    "correlation": lambda m, x: torch.corrcoef(x),
    "times a weight": lambda m, x: x * m.weight.exp() / m.count,
    "times a mean, in place": lambda m, x: (x * 1).mul_(x.mean()),
    "a mean in a row": lambda m, x: _written(x * 1, 0, x.mean()),
    "a number where": lambda m, x: _written(x * 1, x > 0, 0.5),
    "an element": lambda m, x: _written(x * 1, (0, 0), torch.tensor(3.0)),
    "a counter": lambda m, x: x * 0.9 ** m.count.add_(1),
    "a running mean": lambda m, x: x + m.count.lerp_(x.detach().mean(), 0.1),
    "a list of one": lambda m, x: torch._foreach_exp([x])[0],
    "a list of several": lambda m, x: torch.stack(torch._foreach_mul(list(x), 2.0)),
    "range of whole numbers and of others": lambda m, x: x * torch.arange(4) / (1 + torch.arange(4.0)),
    "fold": lambda m, x: functional.fold(functional.unfold(x.view(1, 1, 4, 4), 2), (4, 4), 2),
    "dilated on one image": lambda m, x: m.dilated(x.view(1, 1, 4, 4).expand(-1, 4, -1, -1)),
    "random factors": lambda m, x: x * torch.bernoulli(torch.full((4,), 0.5)) + torch.randn_like(x),
    "gumbel": lambda m, x: functional.gumbel_softmax(x, hard=True),
    "random order": lambda m, x: x[torch.randperm(4)] * torch.empty(4).exponential_(),
    "random slope": lambda m, x: functional.rrelu(x, training=True),
    "gradient of a gradient": lambda m, x: _in_a_gradient(x),
    "mapped": lambda m, x: torch.vmap(lambda row: row * row.sum())(x),
    "largest": lambda m, x: x.topk(2).values + x.sort().values[:, :2] + x.amax(),
    "decompositions": lambda m, x: torch.linalg.cholesky(x @ x.T + torch.eye(4)) + torch.linalg.inv(x),
    "spectrum": lambda m, x: torch.fft.rfft(x).abs(),
    "distances": lambda m, x: torch.cdist(x, 2 * x).sum() + functional.pdist(x).sum(),
}
CAPTURED |= {"numbers drawn twice": lambda m, x: _drawn_twice(x), "numbers drawn apart": lambda m, x: _drawn_apart(x)}
_READ = "Python reads the value of a tensor"
_SHAPE = "the shape of what aten.* returns depends on the values of tensors"
_SEED = "it seeds torch's random generator"


def _seeded(inputs: Tensor) -> Tensor:
    torch.manual_seed(1)  # as the test does before each step
    return inputs * torch.rand(4)


def _restored(inputs: Tensor) -> Tensor:
    torch.set_rng_state(_STATE)
    return inputs * torch.rand(4)


_STATE = torch.get_rng_state()


def _drawn_twice(inputs: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = torch.rand(4)
    torch.set_rng_state(state)
    return inputs * first * torch.rand(4)


def _drawn_apart(inputs: Tensor) -> Tensor:
    with torch.random.fork_rng():
        factors = torch.rand(4)
    return inputs * factors * torch.rand(4)


REFUSED: dict[str, tuple[Function, str]] = {
    "number": (lambda m, x: x * x.mean().item(), _READ),
    "number of a buffer": (lambda m, x: x * float(m.count), _READ),
    "branch": (lambda m, x: x if x.mean() > 0 else -x, _READ),
    "index": (lambda m, x: x[x.argmax() % 4], _READ),
    "number of a random tensor": (lambda m, x: x * torch.rand(()).item(), _READ),
    "tensor of means": (lambda m, x: x * torch.tensor([row.mean() for row in x]), _READ),
    "fill": (lambda m, x: x + torch.full((4,), m.count), _READ),
    "selection": (lambda m, x: x[x > 0], _SHAPE),
    "set": (lambda m, x: x * torch.unique(x.detach()).sum(), _SHAPE),
    "seed": (lambda m, x: _seeded(x), _SEED),
    "state from outside": (lambda m, x: _restored(x), "read outside of the step"),
    "seed without a draw": (lambda m, x: (torch.manual_seed(2), x)[1], _SEED),
}


def _work(function: Function) -> Workload:
    torch.manual_seed(3)
    module = Layer(
        lambda m, inputs: function(m, m.inner(inputs)),  # type: ignore[arg-type]
        inner=nn.Linear(4, 4),
        dilated=nn.Conv2d(4, 1, 2, dilation=2),
        weight=nn.Parameter(torch.rand(())),
    )
    module.register_buffer("count", torch.tensor(2.0))
    return Workload("operator", module, lambda output: output.mean(), (torch.randn(4, 4),))


@pytest.mark.parametrize("name", CAPTURED)
def test_what_runs_gives_the_same_bits(name: str) -> None:
    expected, found = results_of(_work(CAPTURED[name]))
    assert not expected.difference(found)


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_would_differ_is_refused_and_leaves_the_generator_as_it_was(name: str) -> None:
    function, message = REFUSED[name]
    work = _work(function)
    torch.manual_seed(1)
    with pytest.raises(UnsupportedModel, match=message):
        Captures(work).at(4)


class _Sample(nn.Module):
    """A call of torch's own list of operators, with weights in place of the tensors that take gradients."""

    def __init__(self, function: Callable[..., Any], sample: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves, self.structure = tree_flatten((sample.input, sample.args, sample.kwargs))
        for position, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                self.leaves[position] = None
                if leaf.requires_grad:
                    setattr(self, f"leaf{position}", nn.Parameter(leaf.detach().clone()))
                else:
                    self.register_buffer(f"leaf{position}", leaf.detach())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        leaves = [getattr(self, f"leaf{i}", leaf) for i, leaf in enumerate(self.leaves)]
        arguments, args, kwargs = tree_unflatten(leaves, self.structure)
        outputs = [each for each in tree_leaves(self.function(arguments, *args, **kwargs)) if isinstance(each, Tensor)]
        real = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in outputs]
        total: Tensor = sum(((each.float() / 2).sin().sum() for each in real), inputs.sum())
        return total * self.scale


NOT_COMPARED = {
    "empty": "returns unfilled memory",
    "empty_like": "returns unfilled memory",
    "empty_permuted": "returns unfilled memory",
    "empty_strided": "returns unfilled memory",
    "new_empty": "returns unfilled memory",
    "new_empty_strided": "returns unfilled memory",
}
REASONS = (
    _READ,
    "depends on the values of tensors",
    "does not run on synthetic data",  # lengths and counts whose sum is a size
    "output with shape [] doesn't match",  # the shape function of addbmm does not take in place what its kernel takes
)
"""Sentences with which calls are refused."""
ROUNDED = {
    "masked.prod", "masked_fill", "max.reduction_no_dim", "median", "min.reduction_no_dim", "nanmedian", "prod",
}  # fmt: skip
"""Operators with another gradient from traced tensors, by a formula without a shape that depends on values.

It differs by rounding, or by the sign of zeros.
"""


def _samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Workload]]:
    """Yield some of the calls with which torch tests its operators."""
    from torch.testing._internal import common_methods_invocations as torchs

    monkeypatch.setattr(torchs, "wrapper_set_seed", lambda operator, *args, **kwargs: operator(*args, **kwargs))
    for operator in torchs.op_db:
        name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
        if name in NOT_COMPARED or not operator.supports_dtype(torch.float32, "cpu"):
            continue
        torch.manual_seed(0)
        made = operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd)
        samples = list(islice(made, 100))
        for function in filter(None, (operator.op, operator.inplace_variant)):
            is_in_place = function is operator.inplace_variant
            for sample in samples[:: max(1, len(samples) // 4)]:
                called = (lambda x, *a, f=function, **k: f(x * 1, *a, **k)) if is_in_place else function
                module = _Sample(called, sample)
                if _runs_in_plain_pytorch(module):
                    yield name, Workload(name, module, lambda output: output, (torch.ones(2),))


def _runs_in_plain_pytorch(module: nn.Module) -> bool:
    """Return whether a sample is neither an error, as some are in place, nor sparse."""
    try:
        module(torch.ones(2)).backward()
    except (AssertionError, RuntimeError, TypeError):
        return False
    tensors = [*module.buffers(), *(weight.grad for weight in module.parameters() if weight.grad is not None)]
    module.zero_grad(set_to_none=True)
    return all(tensor.layout is torch.strided for tensor in tensors)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
def test_all_of_torchs_operators_give_the_same_bits_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some 3,200 calls of 660 operators some 70 are refused: their values or shapes leave the device."""
    compared, wrong, refused = 0, [], []
    for name, work in _samples(monkeypatch):
        try:
            expected, found = results_of(work)
        except UnsupportedModel as error:
            refused.append(name)
            if not any(reason in str(error) for reason in REASONS):
                wrong.append(f"{name}: {error}")
            continue
        compared += 1
        if name in ROUNDED:
            torch.testing.assert_close(found.gradients, expected.gradients)
        elif difference := expected.difference(found):
            wrong.append(f"{name}: {difference}")
    assert not wrong
    assert compared > 3000 and len(refused) < 90, (compared, refused)
