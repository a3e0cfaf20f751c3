"""Settings of torch that a program makes: each is predicted, or named in a sentence, or refused in one."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch import Tensor, nn

import membench
from membench.core.configuration import load
from membench.core.errors import MembenchError
from membench.steps.arguments import in_process
from membench.steps.predicted.prediction import Prediction

Setting = Callable[[], AbstractContextManager[Any]]


class Net(nn.Module):
    """A convolution and a product in single precision, with numbers of the default dtype between them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(8, 64, 3, padding=1), nn.Linear(64, 512)

    def forward(self, images: Tensor) -> Tensor:
        made = self.convolution(images).mean((2, 3))
        return self.linear(made + torch.ones(64, device=made.device).to(made.dtype))


def predicted(module: nn.Module | None = None, **options: Any) -> Prediction:
    with torch.device("meta"):
        module = Net() if module is None else module
        images = torch.empty(64, 8, 64, 64, dtype=torch.float32)
    module = module.to("meta", torch.float32)
    return membench.predict(module, Tensor.sum, ((images,), ()), device="a100_80gb", **options)


def attribute(owner: Any, name: str, value: Any) -> Setting:
    @contextmanager
    def changed() -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return changed


def called(function: Callable[[Any], Any], value: Any, before: Any) -> Setting:
    @contextmanager
    def changed() -> Iterator[None]:
        function(value)
        try:
            yield
        finally:
            function(before)

    return changed


CUDNN, MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul

READ: dict[str, Setting] = {
    "matmul precision high": called(torch.set_float32_matmul_precision, "high", "highest"),
    "matmul precision medium": called(torch.set_float32_matmul_precision, "medium", "highest"),
    "matmul.allow_tf32": attribute(MATMUL, "allow_tf32", True),
    "matmul.fp32_precision": attribute(MATMUL, "fp32_precision", "tf32"),
    "cudnn.allow_tf32": attribute(CUDNN, "allow_tf32", False),
    "cudnn.conv.fp32_precision": attribute(CUDNN.conv, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
}
"""Settings by which a prediction without a precision changes."""

NAMED: dict[str, tuple[Setting, str]] = {
    "cudnn.benchmark": (attribute(CUDNN, "benchmark", True), "cudnn.benchmark"),
    "cudnn.deterministic": (attribute(CUDNN, "deterministic", True), "cudnn.deterministic"),
    "cudnn.enabled": (attribute(CUDNN, "enabled", False), "cudnn.enabled"),
    "deterministic algorithms": (
        called(torch.use_deterministic_algorithms, True, False),
        "use_deterministic_algorithms.* not filled",
    ),
    "fp16 reduction": (
        attribute(MATMUL, "allow_fp16_reduced_precision_reduction", False),
        "allow_fp16_reduced_precision_reduction",
    ),
    "bf16 reduction": (
        attribute(MATMUL, "allow_bf16_reduced_precision_reduction", False),
        "allow_bf16_reduced_precision_reduction",
    ),
    "fp16 accumulation": (attribute(MATMUL, "allow_fp16_accumulation", True), "allow_fp16_accumulation"),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), "set_detect_anomaly"),
    "multithreading": (lambda: torch.autograd.set_multithreading_enabled(False), "set_multithreading_enabled"),
    "save_on_cpu": (torch.autograd.graph.save_on_cpu, "save_on_cpu"),
    **{
        name: (lambda name=name, value=value: patch.dict(os.environ, {name: value}), named)
        for name, value, named in (
            ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "pass allocator='expandable_segments:True'"),
            ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", "pass allocator='max_split_size_mb:64'"),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "CUBLAS_WORKSPACE_CONFIG"),
            ("CUDA_LAUNCH_BLOCKING", "1", "CUDA_LAUNCH_BLOCKING"),
            ("NVIDIA_TF32_OVERRIDE", "1", "NVIDIA_TF32_OVERRIDE"),
        )
    },
}
"""Settings that are named in a sentence next to the number, which is that without them."""

WITHOUT_EFFECT: dict[str, Setting] = {
    "no_grad": torch.no_grad,
    "number of threads": called(torch.set_num_threads, 2, torch.get_num_threads()),
    "gradients off": lambda: torch.set_grad_enabled(False),
    "dtype": called(torch.set_default_dtype, torch.float64, torch.float32),  # what forward makes has 256 bytes more
    "device": lambda: torch.device("meta"),
}
"""Settings by which neither a number nor a sentence changes; a dtype changes what a module makes in it."""


@pytest.fixture(scope="module")
def plain() -> Prediction:
    found = predicted()
    assert found.unpredicted == ()
    return found


@pytest.mark.parametrize("name", READ)
def test_a_setting_of_tf32_is_predicted_unless_the_step_has_a_precision(name: str, plain: Prediction) -> None:
    with READ[name]():
        found = predicted()
        assert predicted(precision="fp32").step_time_s == pytest.approx(predicted(precision="fp32").step_time_s)
        in_tf32 = predicted(precision="tf32")
    assert found.step_time_s != plain.step_time_s and not found.unpredicted
    assert in_tf32.step_time_s == predicted(precision="tf32").step_time_s
    assert predicted().step_time_s == plain.step_time_s


@pytest.mark.parametrize("name", NAMED)
def test_a_setting_that_is_not_predicted_is_named_in_a_sentence(name: str, plain: Prediction) -> None:
    setting, expected = NAMED[name]
    with setting():
        found = predicted()
    [sentence] = found.unpredicted
    assert re.search(expected, sentence) and sentence.endswith(".")
    assert found.allocated_bytes == plain.allocated_bytes


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_setting_without_effect_changes_nothing(name: str, plain: Prediction) -> None:
    with WITHOUT_EFFECT[name]():
        found = predicted()
    assert found.unpredicted == ()
    assert found.reserved_bytes == plain.reserved_bytes


def test_trying_algorithms_of_convolutions_is_read_of_the_process() -> None:
    device = load("device", "a100_40gb")
    assert not in_process(device, {}).benchmarks_convolutions
    with attribute(CUDNN, "benchmark", True)():
        assert in_process(device, {}).benchmarks_convolutions


def test_what_a_step_does_not_have_is_not_named() -> None:
    linear = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))
    with attribute(CUDNN, "benchmark", True)():
        assert predicted(linear).unpredicted == ()
    with patch.dict(os.environ, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}):
        assert predicted(allocator="expandable_segments:True").unpredicted == ()


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_prediction_within_autocast_is_refused(kind: str) -> None:
    torch.set_autocast_enabled(kind, True)
    try:
        with pytest.raises(MembenchError, match="within torch.autocast.* pass precision="):
            predicted()
    finally:
        torch.set_autocast_enabled(kind, False)


def as_given(module: nn.Module, **options: Any) -> nn.Module:
    return torch.compile(module, **options)  # type: ignore[no-any-return]


def in_place(module: nn.Module, **options: Any) -> nn.Module:
    module.compile(**options)
    return module


def each_layer(module: nn.Module, **options: Any) -> nn.Module:
    for layer in module.children():
        layer.compile(**options)
    return module


@pytest.mark.parametrize("given", [as_given, in_place, each_layer])
def test_compiled_in_one_graph_is_predicted_as_compiled(given: Callable[..., nn.Module]) -> None:
    for options in ({}, {"kernels": "inductor"}, {"kernels": "eager"}):
        whole, parts = (predicted(given(Net(), fullgraph=fullgraph), **options) for fullgraph in (True, False))
        assert whole == parts and whole.unpredicted == ()


def test_a_compiled_product_has_the_bytes_that_it_has_without_fullgraph() -> None:
    module = torch.compile(nn.Linear(64, 64).to("meta"), fullgraph=True)
    batch = ((torch.empty(8, 64, device="meta"),), ())
    assert membench.predict(module, lambda made: made.sum(), batch, device="h100").allocated_bytes == 35_336


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "reduce-overhead"}, ["CUDA graphs"]),
        ({"mode": "max-autotune-no-cudagraphs"}, ["autotuning"]),
        ({"mode": "max-autotune"}, ["autotuning", "CUDA graphs"]),
        ({"options": {"triton.cudagraphs": True}}, ["CUDA graphs"]),
        ({"options": {"epilogue_fusion": False}}, ["epilogue_fusion = False"]),
        ({"dynamic": True}, ["dynamic=True"]),
        ({"dynamic": False}, []),
        ({"mode": "default"}, []),
    ],
    ids=str,
)
def test_an_option_of_compile_is_named(options: dict[str, Any], expected: list[str], fullgraph: bool) -> None:
    found = predicted(as_given(Net(), fullgraph=fullgraph, **options))
    assert len(found.unpredicted) == len(expected)
    assert all(any(each in sentence for sentence in found.unpredicted) for each in expected)


def test_a_budget_of_compiled_code_is_refused_where_code_is_compiled() -> None:
    for budget in (0.5, 0.0):
        with torch._functorch.config.patch(activation_memory_budget=budget):
            for options in ({"module": as_given(Net())}, {"module": each_layer(Net())}, {"kernels": "inductor"}):
                with pytest.raises(MembenchError, match=f"activation_memory_budget is {budget}.* strategy="):
                    predicted(**options)
            assert predicted().unpredicted == ()
    with torch._functorch.config.patch(activation_memory_budget=1.0):
        assert predicted(as_given(Net())).unpredicted == ()


def test_an_option_for_all_compiled_code_is_named() -> None:
    with torch._inductor.config.patch(max_fusion_size=8):
        [sentence] = predicted(as_given(Net())).unpredicted
        assert "torch._inductor.config.max_fusion_size = 8" in sentence
        assert predicted().unpredicted == ()


@pytest.mark.usefixtures("kept_planners")
def test_the_advice_names_what_is_not_predicted() -> None:
    with torch.device("meta"):
        module, images = Net(), torch.empty(4, 8, 32, 32)
    with attribute(CUDNN, "benchmark", True)():
        advice = membench.advise(
            module,
            Tensor.sum,
            ((images,), ()),
            device="a100_80gb",
            methods=["eager"],
            levers=False,
            largest="none",
            processes=1,
        )
    assert "cudnn.benchmark" in str(advice)
