"""Each use of torch's private API: a test here fails when a release of torch changes it."""

import ast
import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.optim import optimizer as torch_optimizer

import membench
from membench.core import torch_contexts as contexts
from membench.core import torch_internals as internals
from tests.helpers.compiler import with_compiler

aten = torch.ops.aten
PACKAGE = Path(membench.__file__).parent

OTHERS_ATTRIBUTES = {"_replace", "_make", "_asdict", "_fields", "_USE_PSUTIL"}
"""Underscored names that are not torch's: public ones of a `NamedTuple`, and a switch of joblib."""

CHECKED_STRINGS = {name for kind in (Tensor, nn.Module(), torch.UntypedStorage) for name in dir(kind)}
"""Attributes of torch's objects, which `getattr` and the like could name in a string."""


# ---- no other module ---------------------------------------------------------------------------------


def private_names(source: str) -> Iterator[str]:
    """Yield torch's private names in a module: in imports, attributes and strings."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "torch":
                yield from (f"{module}.{a.name}" for a in names if is_private(f"{module}.{a.name}"))
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.startswith("torch.") and is_private(a.name))
            case ast.Attribute(value=value, attr=attr) if is_private(attr) and attr not in OTHERS_ATTRIBUTES:
                owner = ast.unparse(value)
                if owner not in ("self", "cls", "super()"):
                    yield f"{owner}.{attr}"
            case ast.Constant(value=str(text)):
                if text.startswith("torch._") or (is_private(text) and text in CHECKED_STRINGS):
                    yield text


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def test_no_other_module_names_a_private_attribute_of_torch() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if path.name
        not in ("torch_internals.py", "torch_contexts.py", "torch_devices.py", "torch_inductor.py")
        and (names := list(private_names(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._C",
        "from torch.utils._pytree import tree_leaves",
        "from torch.cuda import _POOL_HANDLE",
        "torch._C._cuda_clearCublasWorkspaces()",
        "tensor.untyped_storage()._cdata",
        "attrgetter('_backward_hooks')",
        "logging.getLogger('torch._subclasses.fake_tensor')",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    assert list(private_names(source))


# ---- tracing ------------------------------------------------------------------------------------------


def test_a_fake_tensor_is_made_of_a_meta_tensor_and_a_device() -> None:
    mode = internals.FakeTensorMode(allow_non_fake_inputs=True)
    with internals.no_dispatch():
        meta = torch.empty_strided((2, 3), (1, 2), device="meta")
    fake = internals.FakeTensor(mode, meta, torch.device("cuda"))
    assert (fake.device.type, fake.stride(), fake.constant) == ("cuda", (1, 2), None)
    with mode:
        assert isinstance(fake + 1, internals.FakeTensor)
        with internals.no_dispatch():
            assert not isinstance(torch.ones(1), internals.FakeTensor)
        assert isinstance(torch.tensor(1.0) + 1, internals.FakeTensor)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda images: images.sum().item(), internals.DataDependentOutputException),
        (torch.nonzero, internals.DynamicOutputShapeException),
    ],
)
def test_a_fake_tensor_s_errors_name_their_operator(function: Any, error: type[Exception]) -> None:
    with internals.FakeTensorMode() as mode, pytest.raises(error) as caught:
        function(mode.from_tensor(torch.ones(3)))
    assert isinstance(caught.value.func, internals.OpOverload)  # type: ignore[attr-defined]


def test_an_operator_without_a_shape_function_is_an_error_that_names_it() -> None:
    assert issubclass(internals.UnsupportedOperatorException, RuntimeError)
    assert internals.UnsupportedOperatorException(aten.add.Tensor).func is aten.add.Tensor


def test_a_shape_function_s_error_is_logged_under_the_name(caplog: pytest.LogCaptureFixture) -> None:
    assert internals.FAKE_TENSOR_LOGGER in logging.root.manager.loggerDict
    with (
        caplog.at_level(logging.ERROR, internals.FAKE_TENSOR_LOGGER),
        internals.FakeTensorMode() as mode,
        pytest.raises(RuntimeError),
    ):
        mode.from_tensor(torch.ones(2, 3)) @ mode.from_tensor(torch.ones(2, 3))
    assert {record.name for record in caplog.records} <= {internals.FAKE_TENSOR_LOGGER}


def test_a_dispatch_mode_sees_operators_below_autograd() -> None:
    seen = []

    class Log(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    weight = torch.ones(2, requires_grad=True)
    with Log():
        weight.relu().sum().backward()
    assert aten.relu.default in seen and aten.threshold_backward.default in seen


def test_nodes_have_the_numbers_that_were_next_when_they_were_made() -> None:
    weight = torch.ones(2, requires_grad=True)
    first = internals.next_sequence_number()
    output = weight.relu().exp()
    assert output.grad_fn is not None
    inner = output.grad_fn.next_functions[0][0]
    assert internals.sequence_number(inner) == first
    assert internals.sequence_number(output.grad_fn) == internals.next_sequence_number() - 1


def test_views_share_a_storage_s_address() -> None:
    with internals.FakeTensorMode():
        images = torch.empty(4, 4)
        view, other = images[1:].untyped_storage(), torch.empty(4, 4).untyped_storage()
    address = internals.storage_address(images.untyped_storage())
    assert internals.storage_address(view) == address != internals.storage_address(other)


# ---- operators ----------------------------------------------------------------------------------------


def test_a_schema_has_arguments_and_returns_with_their_aliases() -> None:
    schema = internals.operator_schema(aten.relu_.default)
    [argument], [returned] = schema.arguments, schema.returns
    assert (argument.name, argument.alias_info.is_write) == ("self", True)
    assert returned.alias_info.before_set == argument.alias_info.before_set
    view = internals.operator_schema(aten.view.default).arguments[0].alias_info
    assert view.before_set and not view.is_write


def test_the_function_of_an_operator_computes_what_the_operator_does() -> None:
    numbers = torch.arange(4.0)
    added = internals.operator_function(aten.add.Tensor)(numbers, numbers, alpha=2)
    assert torch.equal(added, aten.add.Tensor(numbers, numbers, alpha=2))


def test_an_overload_has_a_packet_tags_and_a_namespace() -> None:
    operator = aten.native_dropout.default
    assert isinstance(operator, internals.OpOverload)
    assert (operator.overloadpacket.__name__, operator.namespace) == ("native_dropout", "aten")
    assert torch.Tag.nondeterministic_seeded in operator.tags


def test_formulas_count_operations() -> None:
    left, right = torch.ones(2, 3), torch.ones(3, 4)
    assert internals.flop_registry[aten.mm](left, right, out_val=left @ right) == 2 * 2 * 3 * 4


def test_cudnn_is_asked_for_its_reserve() -> None:
    assert callable(torch._C._get_cudnn_batch_norm_reserve_space_size)  # type: ignore[attr-defined]


@pytest.mark.cuda
def test_cudnn_s_batch_norm_reserves_memory() -> None:
    assert internals.cudnn_batch_norm_reserve_bytes(torch.ones(2, 4, 6, 6, device="cuda")) >= 0


def test_a_memory_format_is_suggested_from_strides() -> None:
    images = torch.ones(2, 3, 4, 5)
    last = images.contiguous(memory_format=torch.channels_last)
    assert internals.suggest_memory_format(images) is torch.contiguous_format
    assert internals.suggest_memory_format(last) is torch.channels_last


def test_lazy_views_have_their_bits() -> None:
    number = torch.tensor([1 + 2j])
    conjugate, negative = internals.conjugate_view(number), internals.negative_view(torch.ones(1))
    assert conjugate.is_conj() and conjugate.resolve_conj().item() == 1 - 2j
    assert negative.is_neg() and negative.resolve_neg().item() == -1


# ---- modules ------------------------------------------------------------------------------------------


def test_a_module_s_dicts_stay_the_same_objects() -> None:
    module = nn.BatchNorm2d(3)
    members, hooks = internals.module_members(module), internals.module_hooks(module)
    module.weight, module.running_mean = nn.Parameter(torch.zeros(3)), torch.ones(3)
    module.add_module("child", nn.ReLU())
    children, weights, buffers = members
    assert children["child"] is module.child
    assert weights["weight"] is module.weight and buffers["running_mean"] is module.running_mean
    handles = [
        module.register_forward_hook(lambda *_: None),
        module.register_forward_pre_hook(lambda *_: None),
        module.register_full_backward_hook(lambda *_: None),
        module.register_full_backward_pre_hook(lambda *_: None),
    ]
    assert [len(each) for each in hooks] == [1, 1, 1, 1]
    for handle in handles:
        handle.remove()
    assert [len(each) for each in hooks] == [0, 0, 0, 0]


def test_attributes_of_every_module_include_its_dicts_and_its_mode() -> None:
    assert {"training", "_parameters", "_buffers", "_modules"} <= internals.MODULE_ATTRIBUTES
    assert "weight" not in internals.MODULE_ATTRIBUTES


def test_hooks_on_a_gradient_are_found() -> None:
    before, after = internals.WEIGHT_HOOKS
    weight = nn.Parameter(torch.ones(1))
    assert not before(weight) and not after(weight)
    weight.register_hook(lambda gradient: gradient)
    weight.register_post_accumulate_grad_hook(lambda parameter: None)
    assert len(before(weight)) == len(after(weight)) == 1


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


def test_an_item_is_read_by_this_operator() -> None:
    found = []

    class Seen(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(func)
            return func(*args, **(kwargs or {}))

    with Seen():
        assert torch.ones(()).item() == 1
    assert found[-1] is internals.read_number


# ---- execution ----------------------------------------------------------------------------------------


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


def test_trees_have_leaves_and_are_mapped_by_type() -> None:
    tree = {"a": [1, (torch.ones(1), None)]}
    assert internals.tree_leaves({"a": [1, (2, 3)]}) == [1, 2, 3]
    leaves, structure = internals.tree_flatten({"a": [1, (2, 3)]})
    assert structure.unflatten(leaves) == internals.tree_map(int, {"a": [1, (2, 3)]}) == {"a": [1, (2, 3)]}
    assert structure.flatten_up_to({"a": [4, (5, [6])]}) == [4, 5, [6]]
    paths = [internals.key_path(path) for path, _ in internals.tree_leaves_with_path({"a": [1, (2, 3)]})]
    assert paths == ["['a'][0]", "['a'][1][0]", "['a'][1][1]"]
    assert internals.tree_map_only(Tensor, lambda _: "tensor", tree) == {"a": [1, ("tensor", None)]}


@pytest.mark.cuda
def test_a_gpu_is_busy_and_gives_back_cublas_s_workspace() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    internals.keep_gpu_busy(10_000_000)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 1
    held_bytes = torch.cuda.memory_allocated()
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    internals.clear_cublas_workspaces()
    assert torch.cuda.memory_allocated() <= held_bytes
    assert isinstance(torch.cuda.graph_pool_handle(), tuple)


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


def test_tensors_are_multiplied_by_one_operator() -> None:
    ones, twos = internals.multiply_each([torch.ones(2), torch.ones(1, 3)], 2.0)
    assert ones.tolist() == [2, 2] and twos.tolist() == [[2, 2, 2]]


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


def test_the_base_of_a_view_is_known() -> None:
    whole = torch.zeros(4)
    assert internals.view_base(whole[1:]) is whole
    assert internals.view_base(whole) is None


def test_attention_and_copies_have_operators() -> None:
    with internals.FakeTensorMode(), torch.device("cuda"):
        query = torch.empty(1, 2, 8, 16, dtype=torch.float16)
        assert internals.flash_attention(query, query, query)[0].shape == query.shape
        assert internals.memory_efficient_attention(query, query, query, None, False)[0].shape == query.shape
        assert internals.copy_to(query, dtype=torch.float32).dtype is torch.float32
    numbers = torch.randn(1, 2, 8, 16)
    assert internals.unfused_attention(numbers, numbers, numbers)[0].shape == numbers.shape


def test_fused_layers_have_operators_and_parts() -> None:
    weights = torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)
    numbers = torch.randn(3, 4, 8)
    output, _ = internals.FUSED_ATTENTION(numbers, numbers, numbers, 8, 2, *weights)
    assert output.shape == numbers.shape
    names = [each.name for each in internals.operator_schema(internals.FUSED_ENCODER_LAYER).arguments]
    assert names[:3] == ["src", "embed_dim", "num_heads"] and names[-2:] == ["mask", "mask_type"]
    heads = internals.split_heads(torch.randn(3, 4, 24), weights[1], 2)
    assert [each.shape for each in heads] == 3 * [(3, 2, 4, 4)]
    scores, mask = heads[0].clone(), torch.eye(4, dtype=torch.bool)
    left_out = heads[0].masked_fill(mask, -torch.inf).softmax(3)
    torch.testing.assert_close(internals.masked_softmax(scores, mask, 3, 0), left_out)
    assert internals.softmax_into(scores, 3, False, out=scores).equal(heads[0].softmax(3))


def test_function_modes_are_counted_and_set_aside() -> None:
    before = internals.torch_function_modes()
    with torch.device("meta"):
        assert internals.torch_function_modes() == before + 1
        with contexts.without_torch_function_modes():
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"


# ---- torch.compile ------------------------------------------------------------------------------------


def test_compiled_modules_are_known_as_such() -> None:
    layer, in_place = nn.Linear(2, 2), nn.Linear(2, 2)
    assert not internals.is_compiled(layer)
    assert internals.is_compiled(torch.compile(layer, backend="eager"))
    in_place.compile(backend="eager")
    assert internals.is_compiled(in_place)


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


def test_a_class_becomes_a_container_with_named_items() -> None:
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    internals.register_container(
        Pair,
        lambda pair: ((pair.left, pair.right), None),
        lambda items, _: Pair(*items),
        lambda _: ("left", "right"),
    )
    made = internals.tree_map(lambda leaf: leaf + 1, [Pair(1, 2)])[0]
    assert type(made) is Pair and (made.left, made.right) == (2, 3)
    paths = [internals.key_path(path) for path, _ in internals.tree_leaves_with_path([made])]
    assert paths == ["[0].left", "[0].right"]


def test_an_operator_with_all_of_its_overloads_has_a_type() -> None:
    assert isinstance(torch.ops.aten.add, internals.OpOverloadPacket)
    assert isinstance(torch.ops.aten.add.Tensor, internals.OpOverload)


def test_flex_attention_is_an_operator_whose_shapes_and_parts_are_known() -> None:
    query, key = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 16, 4)
    shapes = [(1, 2, 8, 4), (1, 2, 8), (1, 2, 8)]
    assert [each.shape for each in internals.flex_attention_shapes(query, key, key)] == shapes
    counts, indices = torch.ones(1, 1, 1, dtype=torch.int), torch.zeros(1, 1, 1, 1, dtype=torch.int)
    mask = (1, 1, counts, indices, *[None] * 10, 1, 1, lambda b, h, q, k: q >= 0)
    made = internals.uncompiled_flex_attention(query, key, key, lambda score, *_: score, mask, 0.5, {})
    torch.testing.assert_close(made[0], (query @ key.mT * 0.5).softmax(-1) @ key)
    assert str(internals.FLEX_ATTENTION) == "flex_attention"


def test_functions_that_torch_compiles_are_counted_among_the_callers() -> None:
    assert internals.compiled_depth() == 0
    with with_compiler(), torch.compiler.set_stance("force_eager"):
        inner = torch.compile(internals.compiled_depth)

        def outer() -> int:
            return inner() + 0

        assert torch.compile(outer)() == 2


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


def test_dispatch_modes_are_set_aside() -> None:
    with internals.FakeTensorMode():
        with contexts.without_dispatch_modes():
            assert not isinstance(torch.zeros(1), internals.FakeTensor)
        assert isinstance(torch.zeros(1), internals.FakeTensor)


def test_operators_of_libraries_are_told_apart() -> None:
    assert internals.is_of_torch(str(torch.ops.aten.add.Tensor)) and internals.is_of_torch(
        str(torch.ops.aten.add)
    )
    assert not internals.is_of_torch("membench.flex_attention.default")


def test_composite_operators_are_those_without_kernels_of_devices() -> None:
    aten = torch.ops.aten
    assert internals.is_composite(aten.linear.default)
    assert not internals.is_composite(aten.mm.default)
    assert not internals.is_composite(aten.silu_backward.default)  # has both


def test_higher_order_operators_have_a_function_of_others() -> None:
    operator = torch.ops.higher_order.out_dtype
    assert isinstance(operator, internals.HigherOrderOperator)
    composed = internals.composed_kernel(operator)
    assert composed is not None
    factors = torch.ones(2, 3, dtype=torch.int8), torch.ones(3, 4, dtype=torch.int8)
    assert composed(torch.ops.aten.mm.default, torch.int32, *factors).eq(3).all()


class Doubled(torch.Tensor):
    """A wrapper subclass of one tensor."""

    def __new__(cls, half: torch.Tensor) -> "Doubled":
        return torch.Tensor._make_wrapper_subclass(cls, half.shape, dtype=half.dtype)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, half: torch.Tensor) -> None:
        self.half_of = half

    def __tensor_flatten__(self) -> tuple[list[str], str]:
        return ["half_of"], "context"

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], context: str, *_: object) -> "Doubled":
        assert context == "context"
        return Doubled(parts["half_of"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def test_a_wrapper_subclass_is_made_again_around_other_tensors() -> None:
    half = torch.ones(3)
    tensor = Doubled(half)
    assert internals.is_wrapper_subclass(tensor) and not internals.is_wrapper_subclass(half)
    [(name, part)] = internals.unwrapped(tensor).items()
    assert name == "half_of" and part is half
    other = torch.zeros(3)
    again = internals.wrapped_again(tensor, {"half_of": other})
    assert type(again) is Doubled and again.half_of is other


# ---- several ranks -------------------------------------------------------------------------------------


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """The first of two ranks, of which the other does not exist."""
    torch.distributed.init_process_group("fake", rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_a_collective_is_functional_and_lets_go_of_its_result_after_the_wait() -> None:
    group = torch.distributed.group.WORLD.group_name
    all_reduce = torch.ops._c10d_functional.all_reduce.default
    assert internals.is_collective(all_reduce) and not internals.is_collective(aten.add.Tensor)
    assert internals.process_group(group) is torch.distributed.group.WORLD
    result = all_reduce(torch.ones(2), "sum", group)
    internals.wait_for_collective(result)
    assert internals.tensor_users(result) == 1 and not internals.has_other_users(result)
    view = result[:1]
    assert internals.has_other_users(result) and view.numel() == 1
    assert str(torch.ops._c10d_functional.wait_tensor.default) == internals.WAIT_FOR_COLLECTIVE


@pytest.mark.usefixtures("two_ranks")
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


def test_what_inductor_compiles_is_told_from_other_backends() -> None:
    by_inductor, layer = torch.compile(nn.Linear(2, 2)), nn.Linear(2, 2)
    assert internals.is_compiled_by_inductor(by_inductor)
    assert not internals.is_compiled_by_inductor(layer) and not internals.is_compiled_by_inductor(None)
    layer.compile(backend="eager")
    assert not internals.is_compiled_by_inductor(layer)
    assert internals.is_compiled_by_inductor(torch.compile(torch.sin))
    with torch.compiler.set_stance("force_eager"):
        assert not internals.is_compiled_by_inductor(by_inductor)
