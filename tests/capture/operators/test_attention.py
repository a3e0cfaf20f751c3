"""The kernel of attention that torch chooses on a GPU, and its call."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import membench
from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.operators.attention import attention, computed_share, with_all_heads
from membench.capture.operators.attention_kernels import AttentionCall, AttentionKernel, attention_kernel
from membench.core.errors import MembenchError
from membench.core.libraries.torch_devices import torch_version
from membench.core.libraries.torch_internals import (
    FakeTensorMode,
    OpOverload,
    flash_attention,
    memory_efficient_attention,
    unfused_attention,
)
from membench.steps.request import StepRequest

CUDNN, FLASH, EFFICIENT, UNFUSED = (AttentionKernel(each) for each in AttentionKernel)
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
AMPERE, ADA, HOPPER, TURING, VOLTA, KEPLER = map(AnyGpu, (8.0, 8.9, 9.0, 7.5, 7.0, 3.5))
MIB = 2**20


def tensors(dtype: torch.dtype, size: int = 64, keys: int = 16, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.empty(2, 4, 16, size, dtype=dtype)
    return (query, torch.empty(2, heads, keys, size, dtype=dtype), torch.empty(2, heads, keys, size, dtype=dtype))


# on an A100, torch's order and conditions; the whole table: test_attention_choices.py
@pytest.mark.parametrize(
    ("dtype", "size", "keys", "is_masked", "is_causal", "expected"),
    [
        (HALF, 64, 16, False, False, FLASH),
        (BRAIN, 256, 16, False, True, FLASH),
        (HALF, 264, 16, False, False, EFFICIENT),
        (HALF, 68, 16, False, False, FLASH),  # padded
        (HALF, 68, 16, True, False, UNFUSED),  # not aligned
        (HALF, 64, 16, True, False, EFFICIENT),
        (HALF, 64, 32, False, True, EFFICIENT),
        (SINGLE, 64, 16, False, True, EFFICIENT),
        (SINGLE, 66, 16, False, False, UNFUSED),
        (torch.float64, 64, 16, False, False, UNFUSED),
    ],
)
def test_the_kernel_is_the_first_whose_conditions_hold(
    dtype: torch.dtype, size: int, keys: int, is_masked: bool, is_causal: bool, expected: AttentionKernel
) -> None:
    mask = torch.ones(16, keys, dtype=torch.bool) if is_masked else None
    call = AttentionCall(*tensors(dtype, size, keys), mask, is_causal=is_causal)
    assert attention_kernel(call, AnyGpu()) is expected


@pytest.mark.parametrize(
    ("gpu", "dtype", "is_masked", "expected"),
    [
        (KEPLER, HALF, False, UNFUSED),
        (VOLTA, HALF, False, EFFICIENT),
        (VOLTA, BRAIN, False, UNFUSED),
        (TURING, HALF, False, EFFICIENT),
        (TURING, BRAIN, False, UNFUSED),
        (TURING, SINGLE, False, EFFICIENT),
        (AMPERE, BRAIN, False, FLASH),
        (HOPPER, BRAIN, False, CUDNN),
        (HOPPER, BRAIN, True, CUDNN),
        (HOPPER, SINGLE, False, EFFICIENT),
    ],
)
def test_the_kernel_depends_on_the_architecture(
    gpu: AnyGpu, dtype: torch.dtype, is_masked: bool, expected: AttentionKernel
) -> None:
    mask = torch.ones(16, 16, dtype=torch.bool) if is_masked else None
    assert attention_kernel(AttentionCall(*tensors(dtype), mask), gpu) is expected


@pytest.mark.parametrize(
    ("size", "dropout", "expected"),
    [(192, 0.0, FLASH), (200, 0.0, EFFICIENT), (256, 0.0, FLASH), (256, 0.1, EFFICIENT)],
)
def test_small_cards_of_an_architecture_lack_the_gradient_of_wide_heads(
    size: int, dropout: float, expected: AttentionKernel
) -> None:
    trained = [each.requires_grad_() for each in tensors(HALF, size)]
    assert attention_kernel(AttentionCall(*trained, dropout=dropout), ADA) is expected
    with torch.no_grad():
        assert attention_kernel(AttentionCall(*trained, dropout=dropout), ADA) is FLASH


def test_grouped_keys_are_taken_as_the_installed_torch_takes_them() -> None:
    fused = EFFICIENT if torch_version() >= (2, 14) else UNFUSED
    assert attention_kernel(AttentionCall(*tensors(HALF, heads=2), is_grouped=True), AMPERE) is FLASH
    assert attention_kernel(AttentionCall(*tensors(HALF, heads=2), is_grouped=True), TURING) is fused
    assert attention_kernel(AttentionCall(*tensors(SINGLE, heads=2), is_grouped=True), AMPERE) is fused
    assert attention_kernel(AttentionCall(*tensors(HALF, heads=2)), AMPERE) is UNFUSED


@pytest.mark.parametrize("kernel", [CUDNN, FLASH, EFFICIENT, UNFUSED])
def test_the_program_chooses_by_a_context(kernel: AttentionKernel) -> None:
    backend = getattr(SDPBackend, kernel.value)
    with sdpa_kernel(backend):
        assert attention_kernel(AttentionCall(*tensors(HALF)), AMPERE) is kernel
    others = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    backends = [backend, *(each for each in others if each != backend)]
    with sdpa_kernel(backends, set_priority=True):
        assert attention_kernel(AttentionCall(*tensors(HALF)), AMPERE) is kernel


@pytest.fixture
def without_flash() -> Iterator[None]:
    torch.backends.cuda.enable_flash_sdp(False)
    yield
    torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.usefixtures("without_flash")
def test_a_kernel_that_is_switched_off_is_not_chosen() -> None:
    assert attention_kernel(AttentionCall(*tensors(HALF)), AMPERE) is EFFICIENT


@pytest.mark.parametrize("size", [64, 68])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
@pytest.mark.parametrize("gpu", [AMPERE, HOPPER, TURING])
def test_the_result_has_the_shape_of_the_query(gpu: AnyGpu, dtype: torch.dtype, is_masked: bool, size: int) -> None:
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        query, key, value = tensors(dtype, size)
        mask = torch.ones(16, 16, dtype=torch.bool) if is_masked else None
        output = attention(gpu, query, key, value, mask, 0.0)
        unbatched = attention(gpu, query[0], key[0], value[0], mask, 0.0)
    assert (output.shape, output.dtype, output.device.type) == (query.shape, dtype, "cuda")
    assert unbatched.shape == query.shape[1:]


def test_the_unfused_formula_gives_torchs_numbers() -> None:
    query, key, value = (torch.randn(2, 16, 8) for _ in range(3))
    mask = torch.rand(16, 16) > 0.5
    mask[:, 0] = True
    for chosen in (None, mask):
        expected = scaled_dot_product_attention(query, key, value, chosen)
        torch.testing.assert_close(attention(KEPLER, query, key, value, chosen), expected)


@pytest.mark.parametrize("operator", [flash_attention.default, memory_efficient_attention.default])
def test_a_causal_kernel_leaves_out_the_blocks_above_the_diagonal(operator: OpOverload) -> None:
    query = torch.empty(1, 1, 1024, 64, device="meta")
    assert computed_share(operator, (query,) * 3, {}) == 1
    # of 8 times 8 blocks, those below the diagonal and the 8 on it
    assert computed_share(operator, (query,) * 3, {"is_causal": True}) == 36 / 64


def test_a_causal_sequence_that_is_one_block_is_computed_whole() -> None:
    query = torch.empty(1, 1, 100, 64, device="meta")
    assert computed_share(flash_attention.default, (query, query, query, 0.0, True), {}) == 1


def test_the_unfused_formula_computes_all_scores() -> None:
    query = torch.empty(1, 1, 1024, 64, device="meta")
    arguments = (query, query, query, None, 0.0, True)
    assert computed_share(unfused_attention.default, arguments, {}) == 1


def test_keys_are_counted_for_each_head_of_the_queries() -> None:
    query, key, value = (torch.empty(2, heads, length, 8) for heads, length in ((6, 5), (3, 7), (3, 7)))
    counted = with_all_heads(flash_attention.default, (query, key, value, 0.0, True))
    assert [tuple(each.shape) for each in counted[:3]] == [(2, 6, 5, 8), (2, 6, 7, 8), (2, 6, 7, 8)]
    assert counted[3:] == (0.0, True)
    assert with_all_heads(torch.ops.aten.mm.default, (query, key)) == (query, key)


class Attention(nn.Module):
    """Attention of a query with itself, by kernels that are named."""

    def __init__(self, *backends: SDPBackend, is_causal: bool = False, is_grouped: bool = False) -> None:
        super().__init__()
        self.backends = list(backends)
        self.options = {"is_causal": is_causal, "enable_gqa": is_grouped}

    def forward(self, query: Tensor, value: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        value = query if value is None else value
        if not self.backends:
            return scaled_dot_product_attention(query, query, value, mask, **self.options)
        with sdpa_kernel(self.backends):
            return scaled_dot_product_attention(query, query, value, mask, **self.options)


def meta(*shape: int, dtype: torch.dtype = BRAIN) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def predicted(module: nn.Module, device: str, *inputs: Tensor | None) -> membench.Prediction:
    return membench.predict(module, None, (inputs, ()), device=device)


@pytest.mark.parametrize("device", ["v100", "t4"])
def test_bfloat16_before_ampere_holds_the_scores(device: str) -> None:
    query = meta(2, 16, 10080, 80)  # 1CatAI/1Cat-vLLM#104: an allocation of 6 GiB failed on a V100
    scores_bytes = 2 * 16 * 10080**2 * 2
    assert predicted(Attention(), device, query).allocated_bytes > 2 * scores_bytes
    assert predicted(Attention(), "a100_80gb", query).allocated_bytes < scores_bytes / 20
    assert predicted(Attention(), device, query.half()).allocated_bytes < scores_bytes / 20


def test_a_chosen_formula_holds_the_scores_and_a_refused_kernel_is_refused() -> None:
    query, mask = meta(1, 32, 2048, 128), meta(2048, 2048, dtype=torch.bool)
    scores_bytes = 32 * 2048**2 * 4
    sizes = {
        name: predicted(Attention(*backends), "h100", query, None, mask).allocated_bytes
        for name, backends in {
            "auto": (),
            "efficient": (SDPBackend.EFFICIENT_ATTENTION,),
            "math": (SDPBackend.MATH,),
        }.items()
    }
    assert max(sizes["auto"], sizes["efficient"]) < 64 * MIB < 2 * scores_bytes < sizes["math"]
    with pytest.raises(MembenchError, match="no available kernel on compute capability 9.0"):
        predicted(Attention(SDPBackend.FLASH_ATTENTION), "h100", query, None, mask)


def test_the_unfused_formula_s_training_peaks_in_softmax_s_gradient() -> None:
    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Parameter(meta(1, 32, 2048, 128)) for _ in range(3))

        def forward(self, mask: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH):
                return scaled_dot_product_attention(self.query, self.key, self.value, mask)

    mask = meta(1, 1, 2048, 2048, dtype=torch.bool)
    training = membench.predict(Training(), lambda output: output.sum(), ((mask,), ()), device="h100")
    measured_bytes = 2.176 * 2**30  # intel/torch-xpu-ops#2390, of a program that also holds the output and its gradient
    assert training.allocated_bytes == pytest.approx(measured_bytes, rel=0.02)


def test_a_context_around_the_prediction_is_read() -> None:
    query = meta(1, 32, 2048, 128)
    with sdpa_kernel(SDPBackend.MATH):
        inside = predicted(Attention(), "h100", query)
    assert inside.allocated_bytes > 10 * predicted(Attention(), "h100", query).allocated_bytes


def test_one_predictor_captures_each_architecture() -> None:
    from membench.core.hardware.device import as_device
    from membench.core.step.workload import Workload
    from membench.steps.predict import Predictor
    from membench.strategies.pytorch import PyTorch

    workload = Workload("attention", Attention(), None, (meta(2, 16, 512, 64),), ())
    predictor = Predictor(workload, StepRequest(PyTorch()))
    volta, ampere = (predictor.on(as_device(name)).allocated_bytes for name in ("v100", "a100_80gb"))
    assert volta > 4 * ampere


def test_memory_efficient_attention_costs_several_times_what_flash_attention_costs() -> None:
    query, value = meta(4, 16, 4096, 192), meta(4, 16, 4096, 128)
    query, value = (nn.Parameter(each) for each in (query, value))

    class Trained(nn.Module):
        def __init__(self, *backends: SDPBackend) -> None:
            super().__init__()
            self.query, self.value = query, value
            self.attention = Attention(*backends, is_causal=True)

        def forward(self) -> Tensor:
            return self.attention(self.query, self.value)

    def step_time_s(*backends: SDPBackend) -> float:
        prediction = membench.predict(Trained(*backends), lambda output: output.sum(), ((), ()), device="h100")
        return prediction.step_time_s

    # torchtitan's PR 1610: at most 70 TFLOPS
    assert step_time_s(SDPBackend.EFFICIENT_ATTENTION) > 18e-3
    assert step_time_s(SDPBackend.CUDNN_ATTENTION) < 4e-3


def test_the_cpu_runs_the_formula_that_the_program_chose() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 32)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.attention = layer, Attention(SDPBackend.MATH)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.attention(self.layer(inputs))

    inputs, targets = torch.randn(2, 4, 64, 32), torch.randn(2, 4, 64, 32)
    network, loss = Network(), nn.MSELoss()
    expected = loss(network(inputs), targets)
    expected.backward()
    gradients = [each.grad for each in network.parameters()]
    network.zero_grad()
    step = membench.compile(network, loss, ((inputs,), (targets,)), strategy="pytorch")
    assert torch.equal(step((inputs,), (targets,)), expected)
    assert all(torch.equal(one, other.grad) for one, other in zip(gradients, network.parameters(), strict=True))
    names = [task.call.operator for task in step.schedule.graph.tasks if task.call]
    assert not any("flash" in name for name in names)
