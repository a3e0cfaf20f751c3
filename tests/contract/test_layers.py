"""Layers and losses that the other networks lack: a step gives the bits of PyTorch, at its predicted peak."""

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import membench
from membench.conformance.results import Reference
from membench.core.step.workload import Workload
from membench.models.p3d import p3d_resnet
from membench.steps.plan import plan
from membench.strategies.layrub.strategy import LayrubHybrid
from tests.helpers.networks.contract import COST, Layer, as_run
from tests.helpers.steps.checks import check_results_and_peak
from tests.helpers.steps.variants import VARIANTS

CLASSES = 3


def classifier(network: nn.Module, inputs: Tensor) -> Workload:
    targets = torch.randint(CLASSES, (len(inputs),))
    return Workload("classifier", network, functional.cross_entropy, (inputs,), (targets,))


def regressor(network: nn.Module, inputs: Tensor) -> Workload:
    return Workload("regressor", network, functional.mse_loss, (inputs,), (torch.randn_like(inputs),))


def recurrent(kind: type[nn.RNNBase]) -> Workload:
    """Read tokens in two layers; the batch comes first, so that the outputs are transposed in place."""
    network = Layer(
        lambda m, tokens: m.head(m.recurrent(m.embedding(tokens))[0][:, -1]),
        embedding=nn.Embedding(9, 4),
        recurrent=kind(4, 5, num_layers=2, batch_first=True),  # type: ignore[call-arg]
        head=nn.Linear(5, CLASSES),
    )
    return classifier(network, torch.randint(9, (4, 6)))


def lstm_in_half_precision() -> Workload:
    """The size of oneDNN's workspace is another one than that which is computed."""

    def of_steps(module: Layer, steps: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module.head(module.recurrent(steps)[0][:, -1])

    layers = {"recurrent": nn.LSTM(4, 5, batch_first=True), "head": nn.Linear(5, CLASSES)}
    network, steps = Layer(of_steps, **layers), torch.randn(3, 7, 4)
    try:
        network(steps)
    except RuntimeError as error:  # oneDNN has none without instructions for half precision
        pytest.skip(f"plain PyTorch has no such LSTM on this CPU: {error}")
    return classifier(network, steps)


def _in_half_precision(module: Layer, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return module.body(inputs)


def half_precise() -> Workload:
    """Autocast around layers with statistics in full precision."""
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, CLASSES))
    return classifier(Layer(_in_half_precision, body=body), torch.randn(4, 4))


def dropped_in_half_precision() -> Workload:
    """Plain PyTorch rounds the scale of what stays."""
    layers = nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, CLASSES), nn.Dropout(0.1)
    return classifier(nn.Sequential(*layers).bfloat16(), torch.randn(8, 4).bfloat16())


def spectrally_normed() -> Workload:
    """Its buffers are written by operators that take them by name."""
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, CLASSES))
    return classifier(Layer(lambda m, inputs: m.normed(inputs), normed=normed), torch.randn(4, 4))


def convolutions_of_signals() -> Workload:
    layers = nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, CLASSES, 3, dilation=2), nn.AdaptiveAvgPool1d(1)
    return classifier(nn.Sequential(*layers, nn.Flatten()), torch.randn(4, 3, 12))


def grouped_in_double_precision() -> Workload:
    """Kernels for it compute group by group, on parts of the input."""
    layers = nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.ConvTranspose2d(4, 4, 3, groups=4)
    return regressor(nn.Sequential(*layers).double(), torch.randn(2, 4, 6, 6, dtype=torch.float64))


def _transformed(module: Layer, images: Tensor) -> Tensor:
    moves = module.localization(images.flatten(1)).view(-1, 2, 3)
    grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def spatial_transformer() -> Workload:
    """The grid is made of vectors that get another dimension in place."""
    return regressor(Layer(_transformed, localization=nn.Linear(48, 6)), torch.randn(2, 3, 4, 4))


def _summed_from_zero(module: Layer, inputs: Tensor) -> Tensor:
    total = torch.tensor(0.5)
    for _ in range(2):
        total += module.inner(inputs).square().mean()
    return inputs * total


def summed_in_a_tensor_made_anew() -> Workload:
    return regressor(Layer(_summed_from_zero, inner=nn.Linear(4, 4)), torch.randn(3, 4))


def _sampled(module: Layer, inputs: Tensor) -> Tensor:
    spread = functional.softplus(module.spread(inputs))
    return torch.distributions.Normal(module.mean(inputs), spread).rsample()


def sampled_from_a_distribution() -> Workload:
    """Distributions check the values of their arguments, which a trace does not have."""
    layers = {"mean": nn.Linear(4, 4), "spread": nn.Linear(4, 4)}
    return regressor(Layer(_sampled, **layers), torch.randn(3, 4))


def clips() -> Workload:
    """Three-dimensional convolutions and poolings, in all three kinds of P3D's blocks."""
    network = p3d_resnet(classes=CLASSES, blocks=(3, 1, 1, 1), channels=4)
    return classifier(network, torch.randn(2, 3, 16, 32, 32))


def bags_of_words() -> Workload:
    """Shape functions get wrong how many bytes its operator keeps."""
    words = torch.randint(9, (4, 6))
    return classifier(nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, CLASSES)), words)


def channels_last() -> Workload:
    """Shape functions get wrong how gradients lie that come from a mean."""
    layers = nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    network = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    return classifier(network, torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last))


def _of_patches(module: Layer, images: Tensor) -> Tensor:
    patches = functional.unfold(module.before(images), 3, padding=1).transpose(1, 2)
    mixed = module.mixing(patches).transpose(1, 2)
    return functional.fold(mixed, images.shape[2:], 3, padding=1)


def normalized_inputs() -> Workload:
    """Nothing before the batch norm is trained, so that its kernel makes no gradient of its input."""
    return classifier(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, CLASSES)), torch.randn(5, 4))


def folded_patches() -> Workload:
    layers = {"before": nn.Conv2d(3, 3, 1), "mixing": nn.Linear(27, 27)}
    return regressor(Layer(_of_patches, **layers), torch.randn(2, 3, 4, 4))


def _spectral(module: Layer, signals: Tensor) -> Tensor:
    spectrum = torch.einsum("bim,iom->bom", torch.fft.rfft(signals), module.weight)
    return torch.fft.irfft(spectrum.conj() * spectrum + module.weight.imag.sum() * spectrum.conj(), n=8)


def fourier_operator() -> Workload:
    """Gradients of complex products are products with conjugates, which torch writes down lazily."""
    weight = nn.Parameter(torch.randn(3, 3, 5, dtype=torch.complex64))
    return regressor(Layer(_spectral, weight=weight), torch.randn(2, 3, 8))


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "bags of words": bags_of_words,
    "channels last": channels_last,
    "clips": clips,
    "convolutions of signals": convolutions_of_signals,
    "dropped in half precision": dropped_in_half_precision,
    "folded patches": folded_patches,
    "fourier operator": fourier_operator,
    "grouped in double precision": grouped_in_double_precision,
    "gru": lambda: recurrent(nn.GRU),
    "half precise": half_precise,
    "lstm": lambda: recurrent(nn.LSTM),
    "lstm in half precision": lstm_in_half_precision,
    "normalized inputs": normalized_inputs,
    "sampled from a distribution": sampled_from_a_distribution,
    "spatial transformer": spatial_transformer,
    "spectrally normed": spectrally_normed,
    "summed in a tensor made anew": summed_in_a_tensor_made_anew,
    "squared error": lambda: regressor(nn.Linear(4, 4), torch.randn(4, 4)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_step_gives_the_bits_of_plain_pytorch(name: str) -> None:
    torch.manual_seed(0)
    case = as_run(WORKLOADS[name]())
    check_results_and_peak(case, plan(case.captured.graph, LayrubHybrid(), COST, None))


@cache
def dropped_lstm() -> Reference:
    """Two layers in both directions, with dropout between them; gates and states are not multiples of cache lines."""
    torch.manual_seed(0)
    network = Layer(
        lambda m, steps: m.head(m.recurrent(steps)[0][-1]),
        recurrent=nn.LSTM(3, 5, num_layers=2, bidirectional=True, dropout=0.4),
        head=nn.Linear(10, CLASSES),
    )
    return as_run(
        Workload("lstm", network, functional.cross_entropy, (torch.randn(7, 4, 3),), (torch.arange(4) % CLASSES,))
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_onednn_s_lstm_is_exact_under_every_strategy(variant: str) -> None:
    case = dropped_lstm()
    operators = Counter(task.call.operator for task in case.captured.graph.tasks if task.call)
    assert operators["aten.mkldnn_rnn_layer.default"] == 4
    assert operators["aten.mkldnn_rnn_layer_backward.default"] == 4
    check_results_and_peak(case, plan(case.captured.graph, VARIANTS[variant], COST, None))


def test_an_lstm_that_is_not_trained_keeps_no_workspace() -> None:
    """In a module that reads its features without gradients, and in a step of inference."""
    torch.manual_seed(0)

    def features(module: Layer, steps: Tensor) -> Tensor:
        with torch.no_grad():
            first = module.recurrent(steps)[0]
        return module.head(module.recurrent(first)[0][-1])

    network = Layer(features, recurrent=nn.LSTM(3, 3), head=nn.Linear(3, CLASSES))
    work = Workload("lstm", network, functional.cross_entropy, (torch.randn(7, 4, 3),), (torch.arange(4) % CLASSES,))
    case = as_run(work)
    layers = [task for task in case.captured.graph.tasks if task.name.endswith(":mkldnn_rnn_layer")]
    kept = [task.call.outputs[3] is not None for task in layers if task.call]
    assert kept == [False, True]
    check_results_and_peak(case, plan(case.captured.graph, LayrubHybrid(), COST, None))
    with torch.no_grad():
        expected = network.eval()(*work.inputs)
        step = membench.compile(network, None, (work.inputs, ()))
        assert torch.equal(step(work.inputs), expected)
