"""Operators that torch's CUDA builds of others, and that hold memory between these, are recorded as these."""

import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import membench
from membench.capture.operators.library_kernels import COMPOSED
from membench.core.libraries.torch_devices import composite_kernel

OF_NUMBERS = {"repeat"}
"""Composites that hold a few numbers for each dimension."""

LEAVES = (torch.ops.aten.empty_like, torch.ops.aten.copy_)
"""Composites that end where memory is made and filled."""


class Storages(TorchDispatchMode):
    """Follows the memory of what a composite kernel calls, those that are composites themselves by their parts.

    Args:
        given: the call's arguments, whose memory is not counted.
    """

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = keys_of(given)
        self.held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kernel = None if func.is_view or func.overloadpacket in LEAVES else composite_kernel(func)
        if kernel is not None:
            with self:
                return kernel(*args, **(kwargs or {}))
        output = func(*args, **(kwargs or {}))
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.untyped_storage()._cdata not in self.given:
                self._follow(each.untyped_storage())
        self.peak_bytes = max(self.peak_bytes, self.bytes_of(set(self.held)))
        return output

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.held:
            self.held[key] = weakref.ref(storage)
            weakref.finalize(storage, self.held.pop, key, None)

    def bytes_of(self, keys: set[int]) -> int:
        """Return what some storages have now: kernels enlarge those of empty outputs."""
        found = [reference() for key, reference in list(self.held.items()) if key in keys]
        return sum(storage.nbytes() for storage in found if storage is not None)


def keys_of(tree: Any) -> set[int]:
    return {each.untyped_storage()._cdata for each in tree_leaves(tree) if isinstance(each, Tensor)}


class Composites(TorchDispatchMode):
    """Note each composite kernel that holds at least an eighth of its largest tensor beside its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        kernel = None if func.is_view or func.namespace != "aten" else composite_kernel(func)
        name = func.overloadpacket.__name__
        if kernel is not None and name not in self.found:
            storages = Storages((args, kwargs))
            try:
                with storages:
                    again = kernel(*args, **(kwargs or {}))
            except Exception:  # asks for values, or for a GPU
                return output
            tensors = [each for each in tree_leaves((args, again)) if isinstance(each, Tensor)]
            largest_bytes = max((each.numel() * each.itemsize for each in tensors), default=0)
            temporaries_bytes = storages.peak_bytes - storages.bytes_of(keys_of(again))
            if largest_bytes >= 64 and temporaries_bytes >= largest_bytes / 8:
                self.found.add(name)
        return output


def samples() -> Iterator[tuple[Any, Any]]:
    """Yield torch's own examples of calls of its operators, without data."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db:
        if torch.float32 not in operator.dtypes or operator.name.startswith(("sparse", "masked.", "nonzero")):
            continue
        try:
            found = list(operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd))[:4]
        except Exception:  # needs a library that is not there
            continue
        for sample in found:
            yield operator, sample


def without_data(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return value.detach().to("meta").requires_grad_(value.requires_grad)
    return value


def composites_with_temporaries() -> set[str]:
    composites = Composites()
    for operator, sample in samples():
        try:
            moved = sample.transform(without_data)
            with composites:
                output = operator(moved.input, *moved.args, **moved.kwargs)
                trained = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.requires_grad]
                if trained:
                    torch.autograd.backward(trained, [torch.empty_like(each) for each in trained])
        except Exception:  # needs data
            continue
    return composites.found


@pytest.mark.exhaustive
def test_every_composite_that_holds_memory_is_recorded_in_parts() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = composites_with_temporaries()
    assert found - OF_NUMBERS == COMPOSED


@pytest.mark.parametrize(
    ("function", "held"),
    [
        # the unfused formula's softmax: beside the scores its result, and a byte for each
        (lambda x: torch.ops.aten._safe_softmax(x, -1), 2.25),
        (lambda x: torch.logsumexp(x, -1), 2.0),
        (torch.isinf, 2.25),
    ],
)
def test_a_composite_holds_on_a_gpu_what_its_parts_hold(function: Any, held: float) -> None:
    class Network(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return function(inputs)

    inputs = torch.empty(64, 1024, device="meta")
    predicted = membench.predict(Network(), None, ((inputs,), ()), device="a100_80gb")
    assert predicted.allocated_bytes / (inputs.numel() * 4) == pytest.approx(held, abs=0.02)


@pytest.mark.parametrize("compiled", [False, True])
def test_softmax_s_gradient_holds_a_product_on_a_gpu_unless_it_is_compiled(compiled: bool) -> None:
    class Network(nn.Module):
        def __init__(self, scores: Any) -> None:
            super().__init__()
            self.scores, self.weight = scores, nn.Parameter(torch.empty(256, 256, device="meta"))

        def forward(self) -> Tensor:
            return self.scores(self.weight @ self.weight, -1) @ self.weight

    def held(scores: Any) -> float:
        network = Network(scores)
        if compiled:
            network.compile()
        predicted = membench.predict(network, lambda output: output.sum(), ((), ()), device="a100_80gb")
        return predicted.allocated_bytes / network.weight.nbytes

    # the gradient of its logarithm multiplies within its kernel
    assert held(torch.softmax) - held(torch.log_softmax) == (0 if compiled else 1)
