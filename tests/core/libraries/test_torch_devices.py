"""Parts of torch's private API for kernels and allocations are there, and do what membench takes them to do."""

import threading

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from membench.core.libraries import torch_devices as devices
from membench.core.libraries.torch_fake_tensors import trace_fakes
from membench.core.libraries.torch_internals import FakeTensor


def test_the_kernel_of_a_grouped_convolution_on_the_cpu_has_a_name() -> None:
    images, weight = torch.ones(1, 2, 5, 5, dtype=torch.float64), torch.ones(2, 1, 3, 3, dtype=torch.float64)
    name = devices.convolution_kernel(images, weight, [1, 1], [0, 0], [1, 1], False, [0, 0], 2)
    assert name == "Slow2d"


def test_a_recorded_thread_is_profiled() -> None:
    recorder = devices.MemoryRecorder()
    assert not devices.is_profiled()
    with recorder.record():
        assert devices.is_profiled()
        kept = torch.empty(3000, dtype=torch.uint8)
        torch.empty(1000, dtype=torch.uint8)
    del kept
    assert recorder.changes_bytes() == [3000, 1000, -1000]
    assert not devices.is_profiled()


def test_a_recorder_has_the_allocations_of_several_threads_in_the_order_of_time() -> None:
    recorder = devices.MemoryRecorder()
    of_thread: list[Tensor] = []

    def work() -> None:
        with recorder.record():
            of_thread.append(torch.empty(1000, dtype=torch.uint8))

    with recorder.record():
        first = torch.empty(10, dtype=torch.uint8)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        del first
        of_thread.clear()
    assert recorder.changes_bytes() == [10, 1000, -10, -1000]


def test_cuda_s_functions_are_there_without_a_gpu() -> None:
    assert callable(torch.cuda._sleep) and callable(torch._C._cuda_clearCublasWorkspaces)
    assert devices.GraphPool((0, 1)) == (0, 1)


def test_cudnn_is_asked_for_its_reserve() -> None:
    assert callable(torch._C._get_cudnn_batch_norm_reserve_space_size)  # type: ignore[attr-defined]


@pytest.mark.cuda
def test_cudnn_s_batch_norm_reserves_memory() -> None:
    assert devices.cudnn_batch_norm_reserve_bytes(torch.ones(2, 4, 6, 6, device="cuda")) >= 0


@pytest.mark.cuda
def test_a_gpu_is_busy_and_gives_back_cublas_s_workspace() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    devices.keep_gpu_busy(10_000_000)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 1
    held_bytes = torch.cuda.memory_allocated()
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    devices.clear_cublas_workspaces()
    assert torch.cuda.memory_allocated() <= held_bytes
    assert isinstance(torch.cuda.graph_pool_handle(), tuple)


def test_the_order_of_attentions_kernels_is_the_programs() -> None:
    names, is_default = devices.attention_order()
    assert is_default and set(names) >= {"FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"}
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        names, is_default = devices.attention_order()
        assert names[:2] == ["MATH", "FLASH_ATTENTION"] and not is_default


def test_the_version_is_two_numbers() -> None:
    assert devices.torch_version() >= (2, 11)


def test_an_operator_without_a_kernel_of_cuda_has_its_parts() -> None:
    softmax = devices.composite_kernel(torch.ops.aten._safe_softmax.default)
    assert softmax is not None
    scores = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])
    assert softmax(scores, -1).tolist() == [[0.5, 0.5], [0.0, 0.0]]
    assert devices.composite_kernel(torch.ops.aten.mm.default) is None


def test_a_build_for_cuda_has_the_kernels_without_which_operators_are_taken_apart() -> None:
    """Others than these are the same for fake tensors on CUDA, whether torch was built for it or not."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    devices.stand_in_for_cuda()
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and has_kernel(name, "CompositeImplicitAutograd") and has_kernel(name, "CUDA"):
            assert name.removeprefix("aten::") in devices.FUSED_ON_CUDA
    assert all(has_kernel(f"aten::{name}", "CUDA") for name in devices.FUSED_ON_CUDA)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="needs a torch that was not built for CUDA")
def test_a_torch_without_cuda_indexes_and_copies_fake_tensors_on_cuda() -> None:
    with trace_fakes() as mode:
        made = torch.empty(3, device="meta")
        first, second = (FakeTensor(mode, made.clone(), torch.device("cuda", 0)) for _ in range(2))
        assert first[0].shape == ()
        assert first.copy_(second).device.type == "cuda"
