"""Quantized weights count by their storage, and are made again where their kernels do that."""

from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from torch import Tensor, nn
from torchao.float8 import convert_to_float8_training
from torchao.quantization import (
    Int4TilePackedTo4dTensor,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

import membench
from membench.capture.operators import unquantized
from membench.core import configuration
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, Role, TaskGraph
from membench.core.hardware.device import as_device
from membench.core.step.stored import stored_weights
from membench.cost.roofline import RooflineCost
from membench.models.fine_tuning import quantized
from membench.steps.arguments import workload_of
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.eager import Eager

LOSS = nn.CrossEntropyLoss()
QUANTIZATIONS = ("bnb.nf4", "bnb.nf4-dq", "bnb.fp4", "bnb.int8", "torchao.nf4")


def network(device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        layers = nn.Linear(16, 128), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.Linear(128, 4)
    return nn.Sequential(*layers).to(torch.bfloat16)


def of(quantization: str, device: str = "cpu") -> nn.Module:
    return quantized(network(device), quantization, unquantized=("0", "4"))


def batch(device: str = "cpu", rows: int = 32) -> tuple[Tensor, Tensor]:
    inputs = torch.zeros(rows, 16, dtype=torch.bfloat16, device=device)
    return inputs, torch.zeros(rows, dtype=torch.int64, device=device)


def on_gpu(module: nn.Module, *, trains: bool = True, rows: int = 32) -> TaskGraph:
    device = next(module.parameters()).device.type
    inputs, targets = batch(device, rows)
    work = workload_of(module, LOSS if trains else None, (inputs, targets if trains else ()))
    return Predictor(work, StepRequest(Eager())).graph_on()


def held_bytes(graph: TaskGraph) -> int:
    roles = (Role.WEIGHT, Role.BUFFER, Role.CONSTANT)
    return sum(block.size_bytes for block in graph.blocks if block.role in roles)


def real_bytes(module: nn.Module) -> int:
    """Return the bytes of the storages that weights and the statistics that they carry really have."""
    tensors = [*stored_weights(module).values()]
    for weight in module.parameters():
        states = [weight, getattr(weight, "quant_state", None)]
        states.append(getattr(states[1], "state2", None))
        tensors += [
            each for state in states if state is not None for each in vars(state).values() if isinstance(each, Tensor)
        ]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_weights_count_by_their_storage(quantization: str) -> None:
    module = of(quantization)
    assert held_bytes(on_gpu(module)) == real_bytes(module)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_weight_counts_before_it_is_moved_as_it_does_then(quantization: str) -> None:
    before, moved = (stored_weights(of(quantization, device)) for device in ("meta", "cpu"))
    assert {name: unquantized.held_bytes(weight) for name, weight in before.items()} == {
        name: weight.numel() * weight.itemsize for name, weight in moved.items()
    }


@pytest.mark.parametrize("storage", ["uint8", "bfloat16", "float32"])
@pytest.mark.parametrize("precision", [None, "bf16", "fp16", "amp_bf16"])
def test_no_precision_converts_packed_weights(precision: str | None, storage: str) -> None:
    module = quantized(network("meta"), "bnb.nf4", ("0", "4"), storage)
    inputs = torch.zeros(32, 16, dtype=torch.bfloat16, device="meta")
    graph = Predictor(workload_of(module, None, (inputs, ()), precision=precision), StepRequest(Eager())).graph_on()
    sizes = {block.name: block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT}
    assert sizes["1.weight"] == sizes["3.weight"] == 128 * 256 // 2


def test_statistics_that_are_quantized_again_are_smaller() -> None:
    """Of a weight of 4096 x 4096: half a byte per element, and a number for each 64, of four bytes or of one."""
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(4096, 4096, bias=False)) for _ in range(2)]
    held = []
    for layer, quantization in zip(layers, ("bnb.nf4", "bnb.nf4-dq"), strict=True):
        module = quantized(layer, quantization)
        inputs = torch.zeros(32, 4096, device="meta")
        held.append(held_bytes(Predictor(workload_of(module, None, (inputs, ())), StepRequest(Eager())).graph_on()))
    elements, code_bytes = 4096 * 4096, 16 * 4
    assert held[0] == elements // 2 + elements // 64 * 4 + code_bytes
    assert held[1] == elements // 2 + elements // 64 + elements // 64 // 256 * 4 + 256 * 4 + 4 + code_bytes


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_module_that_is_quantized_when_it_is_moved_is_predicted_as_it_will_be(quantization: str) -> None:
    before, after = of(quantization, "meta"), of(quantization)
    predictions = [
        membench.predict(module, LOSS, batch(device), device="a100_40gb")
        for module, device in ((before, "meta"), (after, "cpu"))
    ]
    assert predictions[0] == predictions[1]


def test_the_statistics_have_the_names_under_which_they_are_carried() -> None:
    names = {block.name for block in on_gpu(of("bnb.nf4-dq")).blocks if block.role is Role.CONSTANT}
    state = "1.weight.quant_state"
    assert {f"{state}.absmax", f"{state}.code", f"{state}.offset", f"{state}.state2.absmax"} <= names


def test_a_weight_of_4_bits_is_made_again_in_the_backward_pass() -> None:
    graph = on_gpu(of("bnb.nf4"))
    made = [task for task in graph.tasks if task.name.endswith(":dequantize_4bit")]
    assert [task.phase for task in made] == ["forward", "forward", "backward", "backward"]
    packed, statistics, full = 128 * 256 // 2, 128 * 256 // 64 * 4, 128 * 256 * 2
    for task in made:
        assert task.moved_bytes == packed + statistics + full
        [block] = task.creates
        users = [each.index for each in graph.tasks if block in each.reads]
        assert graph.blocks[block].is_transient and users == [task.index + 1]


def test_few_rows_are_multiplied_without_making_the_weight() -> None:
    operators = [task.name for task in on_gpu(of("bnb.nf4"), trains=False, rows=1).tasks]
    assert [name for name in operators if "bit" in name] == ["1:gemm_4bit", "3:gemm_4bit"]
    [product, _] = [task for task in on_gpu(of("bnb.nf4"), trains=False, rows=1).tasks if "gemm" in task.name]
    assert product.operations == 2 * 128 * 256


def test_products_of_8_bits_are_searched_for_outliers_and_scaled() -> None:
    graph = on_gpu(of("bnb.int8"))
    assert graph.plain is not None
    of_layer = [task for task in graph.plain.tasks if task.name.startswith("1:") and task.phase == "forward"]
    assert [task.name.removeprefix("1:") for task in of_layer] == [
        "_to_copy", "abs", "ge", "any", "empty", "int8_vectorwise_quant", "empty",
        "int8_linear_matmul", "int8_mm_dequant", "add_", "_to_copy",
    ]  # fmt: skip
    products = [task for task in graph.tasks if task.name.endswith(":int8_linear_matmul")]
    assert {task.precision for task in products} == {Precision.INT8}
    assert products[0].operations == 2 * 32 * 128 * 256


def test_a_capture_leaves_what_layers_carry_as_it_was() -> None:
    module = of("bnb.int8")
    layer: Any = module[1]
    weight, carried, state = layer.weight, dict(vars(layer.weight)), dict(vars(layer.state))
    on_gpu(module)
    assert layer.weight is weight
    assert all(vars(weight)[name] is value for name, value in carried.items())
    assert all(vars(layer.state)[name] is value for name, value in state.items())


@pytest.mark.parametrize("kind", [Linear4bit, Linear8bitLt])
def test_a_step_that_runs_here_needs_the_module_on_its_device(kind: type[nn.Module]) -> None:
    options = {"has_fp16_weights": False} if kind is Linear8bitLt else {}
    module = nn.Sequential(nn.Linear(16, 64), kind(64, 64, bias=False, **options), nn.Linear(64, 4))  # type: ignore[call-arg]
    with pytest.raises(UnsupportedModel, match=r"1.weight.* quantized only when .* module.to\('cpu'\)"):
        membench.compile(module, LOSS, (torch.zeros(2, 16), torch.zeros(2, dtype=torch.int64)))


def test_a_bias_that_its_layer_converts_is_refused() -> None:
    layer = Linear4bit(64, 64, compute_dtype=torch.bfloat16).requires_grad_(False)
    module = nn.Sequential(nn.Linear(16, 64), layer, nn.Linear(64, 4)).to("cpu")
    example = torch.zeros(2, 16), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(UnsupportedModel, match=r"1.bias.*call the module once on a batch before"):
        membench.compile(module, LOSS, example)
    module(example[0])
    membench.compile(module, LOSS, example)


def test_a_trained_weight_in_other_tensors_is_refused() -> None:
    module = network()
    quantize_(module, Int8WeightOnlyConfig(set_inductor_config=False), lambda _, name: name == "1")
    module[1].weight.requires_grad_(True)
    with pytest.raises(UnsupportedModel, match=r"1.weight.*Int8Tensor stores it in other tensors.*freeze it"):
        membench.predict(module, LOSS, batch(), device="h100")


def test_products_that_quantize_activations_run_in_8_bits() -> None:
    module = network()
    config = Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    quantize_(module, config, lambda _, name: name in ("1", "3"))
    products = [task for task in on_gpu(module, trains=False).tasks if task.name.endswith(":_int_mm")]
    assert [task.precision for task in products] == [Precision.INT8, Precision.INT8]
    assert products[0].operations == 2 * 32 * 128 * 256


def test_weights_that_only_a_gpu_packs_are_predicted_by_their_shapes() -> None:
    """Quantizing to torchao's int4 needs the GPU; its tensor may be made on the meta device."""
    packed = torch.empty(256 // 8, 128 // 128, 32, 4, dtype=torch.int32, device="meta")
    scales = torch.empty(128 // 32, 256, 2, dtype=torch.bfloat16, device="meta")
    module = network("meta")
    weight = Int4TilePackedTo4dTensor(packed, scales, [1, 32], torch.Size([256, 128]))
    module[1].weight = nn.Parameter(weight, requires_grad=False)
    full = held_bytes(on_gpu(network("meta"), trains=False))
    saved_bytes = 128 * 256 * 2 - packed.nbytes - scales.nbytes
    assert held_bytes(on_gpu(module, trains=False)) == full - saved_bytes


def products_time_s(module: nn.Module, example: tuple[Tensor, Any]) -> float:
    graph = Predictor(workload_of(module, lambda output: output.sum(), example), StepRequest(Eager())).graph_on()
    cost = RooflineCost(as_device("h100"), configuration.load("framework", "pytorch").efficiency)
    products = [task for task in graph.tasks if task.kind is Kind.LINEAR]
    assert len(products) == 5
    return sum(cost.task_time_s(task) for task in products)


def test_float8_is_trained_at_the_device_s_rate_or_refused() -> None:
    with torch.device("meta"):
        layers = [nn.Linear(4096, 4096, bias=False) for _ in range(2)]
    module = nn.Sequential(*layers).to(torch.bfloat16)
    example = torch.zeros(8192, 4096, dtype=torch.bfloat16, device="meta"), ()
    times_s = [products_time_s(module, example)]
    convert_to_float8_training(module)
    times_s.append(products_time_s(module, example))
    assert times_s[0] / times_s[1] == pytest.approx(1979 / 989, rel=0.1)
    with pytest.raises(MembenchError, match=r"a100_40gb does not multiply in fp8; choose"):
        membench.predict(module, lambda output: output.sum(), example, device="a100_40gb")


def test_precision_fp8_names_what_converts_the_module() -> None:
    with pytest.raises(MembenchError, match="torchao.float8.convert_to_float8_training"):
        membench.predict(network(), LOSS, batch(), device="h100", precision="fp8")
