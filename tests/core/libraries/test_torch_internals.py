"""Each use of torch's private API: a test here fails when a release of torch changes it."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.core.libraries import torch_internals as internals
from tests.helpers.kernels.compiler import with_compiler

aten = torch.ops.aten


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
    assert internals.flop_formulas()[aten.mm](left, right, out_val=left @ right) == 2 * 2 * 3 * 4


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
    weight = nn.Parameter(torch.ones(1))
    assert [hooks(weight) for hooks in internals.WEIGHT_HOOKS] == [None, None]
    weight.register_hook(lambda gradient: gradient)
    weight.register_post_accumulate_grad_hook(lambda parameter: None)
    before, after = (hooks(weight) for hooks in internals.WEIGHT_HOOKS)
    assert before is not None and after is not None and len(before) == len(after) == 1


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


def test_trees_have_leaves_and_are_mapped_by_type() -> None:
    tree = {"a": [1, (torch.ones(1), None)]}
    assert internals.tree_leaves({"a": [1, (2, 3)]}) == [1, 2, 3]
    leaves, structure = internals.tree_flatten({"a": [1, (2, 3)]})
    assert structure.unflatten(leaves) == internals.tree_map(int, {"a": [1, (2, 3)]}) == {"a": [1, (2, 3)]}
    assert structure.flatten_up_to({"a": [4, (5, [6])]}) == [4, 5, [6]]
    paths = [internals.key_path(path) for path, _ in internals.tree_leaves_with_path({"a": [1, (2, 3)]})]
    assert paths == ["['a'][0]", "['a'][1][0]", "['a'][1][1]"]
    assert internals.tree_map_only(Tensor, lambda _: "tensor", tree) == {"a": [1, ("tensor", None)]}


def test_tensors_are_multiplied_by_one_operator() -> None:
    ones, twos = internals.multiply_each([torch.ones(2), torch.ones(1, 3)], 2.0)
    assert ones.tolist() == [2, 2] and twos.tolist() == [[2, 2, 2]]


def test_the_base_of_a_view_is_known() -> None:
    whole = torch.zeros(4)
    assert internals.view_base(whole[1:]) is whole
    assert internals.view_base(whole) is None


def test_attention_and_copies_have_operators() -> None:
    with internals.FakeTensorMode(), torch.device("cuda"):
        query = torch.empty(1, 2, 8, 16, dtype=torch.float16)
        assert internals.flash_attention(query, query, query)[0].shape == query.shape
        assert internals.cudnn_attention(query, query, query, None, False)[0].shape == query.shape
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


# ---- torch.compile ------------------------------------------------------------------------------------


def test_compiled_modules_are_known_as_such() -> None:
    layer, in_place = nn.Linear(2, 2), nn.Linear(2, 2)
    assert not internals.is_compiled(layer)
    assert internals.is_compiled(torch.compile(layer, backend="eager"))
    in_place.compile(backend="eager")
    assert internals.is_compiled(in_place)


def test_a_class_becomes_a_container_with_named_items() -> None:
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    internals.register_container(
        Pair, lambda pair: ((pair.left, pair.right), None), lambda items, _: Pair(*items), lambda _: ("left", "right")
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


def test_operators_of_libraries_are_told_apart() -> None:
    assert internals.is_of_torch(str(torch.ops.aten.add.Tensor)) and internals.is_of_torch(str(torch.ops.aten.add))
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
