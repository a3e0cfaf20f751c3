"""A wrapped module gives the gradients of its inputs to the bit, under every strategy that trains."""

import warnings

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import membench
from tests.helpers.networks.input_functions import COLUMNS, RETURNED, ROWS, SECOND_SHAPES, STEPS, OfInputs, Steps
from tests.helpers.steps.variants import EACH_COMBINED, VARIANTS


def _inputs(shape: tuple[int, ...], trained: tuple[bool, bool], is_twice: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(size, generator=generator) for size in ((ROWS, COLUMNS), shape))
    first.requires_grad_(trained[0])
    return (first, first) if is_twice else (first, second.requires_grad_(trained[1]))


def _results(module: torch.nn.Module, inputs: tuple[Tensor, Tensor]) -> list[Tensor | None]:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(2)
    outputs = module(*inputs)
    # the sum of a gradient of the loss and those within the module is taken in another order
    made = [each for each in outputs if not any(each is given for given in inputs)]
    torch.stack([(each * each.detach().cos()).sum() for each in made]).sum().backward()
    gradients = [each.grad for each in (*inputs, *module.parameters())]
    return [*(each.detach().clone() for each in outputs), *gradients]


@pytest.mark.parametrize("variant", EACH_COMBINED)
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    returned=RETURNED,
    shape=st.sampled_from(sorted(SECOND_SHAPES)),
    trained=st.tuples(st.booleans(), st.booleans()),
    is_twice=st.booleans(),
)
@example((("plus its tanh", 0, 0),), (), "like the first", (True, False), False)
@example((("lerp in place", 0, 0), ("as it is", 0, 0)), (1, 1), "a row", (True, True), False)
def test_gradients_of_inputs_are_the_modules_bits(
    variant: str, steps: Steps, returned: tuple[int, ...], shape: str, trained: tuple[bool, bool], is_twice: bool
) -> None:
    torch.manual_seed(0)
    module = OfInputs(steps, returned)
    inputs = (SECOND_SHAPES[shape], trained, is_twice)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = _results(module, _inputs(*inputs))
        except RuntimeError:  # plain PyTorch refuses it
            assume(False)
        wrapped = membench.wrap(module, strategy=VARIANTS[variant])
        found = _results(wrapped, _inputs(*inputs))
    [step] = wrapped.wrapped_calls.steps
    wrapped.wrapped_calls.close()
    assert len(found) == len(expected)
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None and not step.schedule.rounding:
            assert torch.equal(one, other)
