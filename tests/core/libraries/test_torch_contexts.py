"""Each state of torch that a context sets, by its private API, is set within the context alone."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.optim import optimizer as torch_optimizer

from membench.core.libraries import torch_contexts as contexts
from membench.core.libraries import torch_internals as internals


def test_an_optimizer_has_hooks_by_these_names_and_no_others() -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_pre_hook(lambda *_: None)
    hooks = {name for name in vars(optimizer) if contexts.is_hook_of_optimizer(name)}
    assert {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "step"} <= hooks
    assert not hooks & {"defaults", "state", "param_groups"}


def test_operators_on_lists_are_chosen_for_types_that_are_named() -> None:
    class Marked(Tensor):
        pass

    before = list(torch_optimizer._foreach_supported_types)
    with contexts.foreach_types(Marked):
        assert Marked in torch_optimizer._foreach_supported_types

    assert torch_optimizer._foreach_supported_types == before


def test_recurrent_networks_run_without_cudnn_and_tf32_stays() -> None:
    before, tf32 = torch._C._get_cudnn_enabled(), torch.backends.cudnn.allow_tf32
    with contexts.without_cudnn():
        assert not torch._C._get_cudnn_enabled() and torch.backends.cudnn.allow_tf32 == tf32
    assert torch._C._get_cudnn_enabled() == before


def test_distributions_check_their_arguments_again_afterwards() -> None:
    Distribution.set_default_validate_args(True)  # torch.compile, which a test may have used, switches it off
    invalid = torch.tensor([-1.0, 1.0])
    with contexts.without_value_checks():
        Categorical(logits=invalid.log())
    with pytest.raises(ValueError, match="logits"):
        Categorical(logits=invalid.log())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_can_be_switched_for_a_device_that_is_missing(device: str) -> None:
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    with contexts.autocast(device, torch.bfloat16):
        assert torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16
        with contexts.without_autocast(device):
            assert not torch.is_autocast_enabled(device)
        assert torch.is_autocast_enabled(device)
    assert (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) == before


def test_autocast_keeps_cast_weights_until_it_ends() -> None:
    weight = torch.randn(3, 3, requires_grad=True)
    with contexts.autocast("cpu", torch.bfloat16):
        first, second = ((weight @ torch.ones(3, 3)).grad_fn for _ in range(2))
        assert first is not None and second is not None
        casts = [node.next_functions[0][0] for node in (first, second)]
    assert casts[0] is casts[1]


def test_hooks_on_saved_tensors_are_set_aside_in_their_order() -> None:
    seen: list[str] = []

    def noting(name: str) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: seen.append(name) or tensor,  # type: ignore[func-returns-value]
            lambda tensor: tensor,
        )

    weight = torch.ones(2, requires_grad=True)
    with noting("outer"):
        with noting("inner"):
            with contexts.without_saved_tensor_hooks():
                weight.exp()
            assert not seen
            weight.exp()
        weight.exp()
    assert seen == ["inner", "outer"]


def test_autocast_has_a_dtype_within_it_alone() -> None:
    with torch.autocast("cpu", torch.float16):
        assert contexts.autocast_dtype("cpu") is torch.float16
    assert contexts.autocast_dtype("cpu") is None


def test_autocast_is_nested_as_torch_s_is() -> None:
    """PyTorch drops cast weights when the outermost context ends, which it tells by this number."""

    def nesting() -> int:
        inner = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        return inner

    outside = nesting()
    with contexts.autocast("cpu", torch.bfloat16):
        assert nesting() == outside + 1
    assert nesting() == outside


def test_function_modes_are_counted_and_set_aside() -> None:
    before = internals.torch_function_modes()
    with torch.device("meta"):
        assert internals.torch_function_modes() == before + 1
        with contexts.without_torch_function_modes():
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"


def test_dispatch_modes_are_set_aside() -> None:
    with internals.FakeTensorMode():
        with contexts.without_dispatch_modes():
            assert not isinstance(torch.zeros(1), internals.FakeTensor)
        assert isinstance(torch.zeros(1), internals.FakeTensor)


def test_calls_of_what_is_compiled_are_noted_unless_they_run_as_they_are() -> None:
    def double(number: Tensor) -> Tensor:
        return 2 * number

    seen: list[Any] = []
    compiled, layer = torch.compile(double, backend="eager"), torch.compile(nn.Identity(), backend="eager")
    with contexts.compiled_calls_noted(seen.append):
        compiled(torch.ones(2))
        layer(torch.ones(2))
        assert seen[0] is double and isinstance(inspect.unwrap(seen[1]), nn.Identity)
        with torch.compiler.set_stance("force_eager"):
            compiled(torch.ones(2))
        torch.compiler.disable(double)(torch.ones(2))
    compiled(torch.ones(2))
    assert len(seen) == 2


def test_uncompiled_flex_attention_runs_as_it_is_written() -> None:
    from torch.nn.attention import flex_attention as module

    query = torch.randn(1, 1, 4, 2)
    with contexts.flex_attention_as_written():
        made = module.flex_attention(query, query, query)  # without the warning that it is not compiled
    torch.testing.assert_close(made, nn.functional.scaled_dot_product_attention(query, query, query))
    assert not module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG


def test_a_tensor_without_dimensions_is_an_index() -> None:
    with internals.FakeTensorMode(), contexts.index_by_tensors():
        assert torch.zeros(3, 2)[torch.tensor(1)].shape == (2,)


@pytest.fixture
def first_of_two_ranks() -> Iterator[None]:
    """The other rank does not exist."""
    torch.distributed.init_process_group("fake", rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("first_of_two_ranks")
def test_placements_are_chosen_unseen() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    rows = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    shapes = []

    class Log(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(kind is not Tensor for kind in types):
                return NotImplemented
            shapes.extend(tuple(each.shape) for each in args if isinstance(each, Tensor))
            return func(*args, **(kwargs or {}))

    with contexts.placements_chosen_unseen(), internals.FakeTensorMode(allow_non_fake_inputs=True), Log():
        rows.tanh()
    assert set(shapes) == {(2, 2)}
