"""What wraps or changes a module: plain PyTorch's bits and memory, or refused in a sentence."""

import copy
import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import membench
from membench.core.errors import MembenchError, UnsupportedModel
from membench.execution.measurement import peak_bytes
from tests.helpers.networks.refused_wrappers import REFUSED
from tests.helpers.networks.wrappers import ANSWERED, INPUTS, ON_HOST, TARGETS, Case, Net, cast, observed, within

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated"),
    pytest.mark.filterwarnings("ignore:.*Disabling autocast"),
    pytest.mark.filterwarnings("ignore:.*beta state"),
    pytest.mark.filterwarnings("ignore:.*NO_SHARD"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
]
"""Of the wrappers themselves."""


def results(module: nn.Module, loss: Tensor) -> dict[str, Tensor | None]:
    """Return copies of the loss, the gradients and the buffers."""
    gradients = {f"{name}.grad": weight.grad for name, weight in module.named_parameters()}
    found = {"loss": loss, **gradients, **dict(module.named_buffers())}
    return {name: None if each is None else each.detach().clone() for name, each in found.items()}


def check_same(ours: dict[str, Tensor | None], theirs: dict[str, Tensor | None]) -> None:
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        other = theirs[name]
        assert one is other is None or (one is not None and other is not None and one.equal(other)), name


def plain_step(case: Case) -> Tensor:
    torch.manual_seed(2)
    loss = case.loss(case.module(case.inputs), TARGETS)
    loss.backward()
    return loss


def predicted(case: Case) -> membench.Prediction:
    return membench.predict(case.module, case.loss, (case.inputs, TARGETS), device="a100_40gb")


@pytest.mark.parametrize("name", ANSWERED)
def test_a_step_has_the_bits_and_the_memory_of_plain_pytorch(name: str) -> None:
    ours, theirs = ANSWERED[name](), ANSWERED[name]()
    step = membench.compile(ours.module, ours.loss, (ours.inputs, TARGETS), strategy="pytorch")
    for _ in range(2):
        for case in (ours, theirs):
            case.module.zero_grad(set_to_none=True)
        torch.manual_seed(2)
        check_same(results(ours.module, step(ours.inputs, TARGETS)), results(theirs.module, plain_step(theirs)))
    theirs.module.zero_grad(set_to_none=True)
    if theirs.is_measured:
        held_bytes = peak_bytes(lambda: plain_step(theirs), CPU)
        assert step.predicted_peak_bytes - step.schedule.graph.external_bytes == held_bytes


@pytest.mark.parametrize("name", ANSWERED)
def test_a_wrapped_module_has_the_bits_of_plain_pytorch(name: str) -> None:
    ours, theirs = ANSWERED[name](), ANSWERED[name]()
    wrapped = membench.wrap(ours.module, strategy="layrub_hybrid")
    for _ in range(2):
        found = []
        for module, case in ((wrapped, ours), (theirs.module, theirs)):
            module.zero_grad(set_to_none=True)
            found.append(results(module, plain_step(Case(module, case.loss, case.inputs))))
        check_same(*found)


@pytest.mark.parametrize("name", ANSWERED)
def test_a_prediction_needs_no_gpu(name: str) -> None:
    assert predicted(ANSWERED[name]()).allocated_bytes > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_answered_for_another_program_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(MembenchError, match=message):
        predicted(build())
    case = build()
    with pytest.raises(MembenchError, match=message):
        membench.compile(case.module, case.loss, (case.inputs, TARGETS))
    case = build()
    with pytest.raises(MembenchError, match=message):
        membench.wrap(case.module)(case.inputs)


@pytest.mark.parametrize("name", ON_HOST)
def test_copies_to_the_host_are_refused_where_they_would_be_made(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="it copies a tensor to the host .* choose a strategy that offloads"):
        predicted(ON_HOST[name]())
    ours, theirs = ON_HOST[name](), ON_HOST[name]()
    step = membench.compile(ours.module, ours.loss, (ours.inputs, TARGETS))
    check_same(results(ours.module, step(ours.inputs, TARGETS)), results(theirs.module, plain_step(theirs)))


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_distributed_modules_are_refused_wherever_they_are() -> None:
    mesh = init_device_mesh("cpu", (1,))
    for wrap, message in (
        (DistributedDataParallel, "distributes its batch over devices itself; pass the module inside"),
        (lambda m: FullyShardedDataParallel(m, device_id=CPU), "each process has only a part of its weights; pass"),
        (
            lambda m: fully_shard(m, mesh=mesh),
            "each process has only a part of its weights; pass|fully_shard has wrapped it",
        ),
    ):
        for module in (wrap(Net()), nn.Sequential(wrap(Net()), nn.Identity())):
            case = Case(module)
            for refused in (predicted, lambda case: membench.wrap(case.module)):
                with pytest.raises(UnsupportedModel, match=message):
                    refused(case)


def test_a_loss_compiled_by_another_backend_is_refused() -> None:
    for loss in (functional.cross_entropy, nn.CrossEntropyLoss()):
        compiled = torch.compile(loss, backend="eager")
        with pytest.raises(
            UnsupportedModel, match="'loss' .* (cross_entropy|CrossEntropyLoss) was given to torch.compile"
        ):
            predicted(Case(Net(), compiled))


def test_a_compiled_module_may_be_run_without_its_compilation() -> None:
    module = torch.compile(Net(), fullgraph=True)
    with torch.compiler.set_stance("force_eager"):
        assert predicted(Case(module)).allocated_bytes == predicted(Case(Net())).allocated_bytes
    with pytest.raises(UnsupportedModel, match="was given to torch.compile"):
        membench.compile(module, functional.cross_entropy, (Case(module).inputs, TARGETS))


def test_a_scaler_of_losses_keeps_no_tensor_of_a_capture() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return scaler.scale(functional.cross_entropy(output, targets))

    case = Case(Net(), loss)
    with pytest.raises(UnsupportedModel, match="scaler._.* it makes when it is first called, .* call the loss once"):
        predicted(case)
    expected = loss(case.module(INPUTS), TARGETS)
    step = membench.compile(case.module, loss, (INPUTS, TARGETS))
    assert step(INPUTS, TARGETS).equal(expected.detach())
    assert scaler.get_scale() == 4.0


def test_quantization_s_observers_read_values_which_only_a_prediction_takes_from_the_batch() -> None:
    assert predicted(Case(observed())).depends_on_values
    case = Case(observed())
    with pytest.raises(UnsupportedModel, match="Python reads the value of a tensor"):
        membench.compile(case.module, case.loss, (case.inputs, TARGETS))


def test_hooks_on_gradients_are_refused_or_run_by_autograd() -> None:
    case = Case(Net())
    case.module.head.weight.register_post_accumulate_grad_hook(lambda weight: None)
    with pytest.raises(UnsupportedModel, match="'head.weight' .* its gradient has a hook"):
        predicted(case)


def allocated_bytes(build: object, precision: str | None = None) -> int:
    case = build() if callable(build) else build
    found = membench.predict(case.module, case.loss, (case.inputs, TARGETS), device="a100_40gb", precision=precision)
    return found.allocated_bytes


def test_autocast_within_a_module_casts_on_a_gpu_that_is_not_here() -> None:
    whole = allocated_bytes(within(lambda m, images: m.plain(images).float()), "amp_bf16")
    assert allocated_bytes(within(cast("cuda"))) == allocated_bytes(within(cast("cpu"))) == whole
    assert whole < allocated_bytes(Case(Net()))


def test_autocast_that_was_made_without_a_gpu_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        decorate = torch.autocast("cuda")
    case = Case(Net())
    case.module.forward = decorate(case.module.forward)
    with caplog.at_level(logging.WARNING, "membench"):
        predicted(case)
    [record] = caplog.records
    assert "is switched off: the model; if it casts on a GPU, make it within forward" in record.getMessage()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_a_wrapped_module_is_a_graph_break_of_torch_compile(backend: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 8))
    plain = nn.Sequential(nn.Linear(8, 8), nn.GELU(), inner, nn.Linear(8, 4))
    ours = copy.deepcopy(plain)
    ours[2] = membench.wrap(ours[2], strategy="layrub_hybrid")
    whole = membench.wrap(copy.deepcopy(inner), strategy="layrub_hybrid")
    exact = backend != "inductor"  # which computes the layers around it in another order

    def check(compiled: nn.Module, theirs: nn.Module, *, exact: bool) -> None:
        for _ in range(2):
            found = []
            for module in (compiled, theirs):
                torch.manual_seed(2)
                loss = module(INPUTS).square().mean()
                loss.backward()
                found.append([loss, *(weight.grad for weight in module.parameters())])
                module.zero_grad()
            torch.testing.assert_close(*found, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)

    check(torch.compile(whole, backend=backend), inner, exact=True)
    inner.zero_grad()
    check(torch.compile(ours, backend=backend), plain, exact=exact)
    assert len(whole.wrapped_calls.steps) == len(ours[2].wrapped_calls.steps) == 1


def test_compiling_a_wrapped_module_in_place_changes_nothing() -> None:
    module = Net()
    wrapped = membench.wrap(module)
    wrapped.compile(backend="eager")
    expected = module(INPUTS)
    assert wrapped(INPUTS).equal(expected)
    assert len(wrapped.wrapped_calls.steps) == 1
