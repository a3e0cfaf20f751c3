"""`membench.wrap`: kinds of calls, what the wrapped module shares with the module, and what is refused."""

import copy
import inspect
import logging
import pickle
from dataclasses import dataclass
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import membench
from membench.core.errors import InfeasibleSchedule, MembenchError, ShapeMismatch, UnsupportedModel, UnsupportedStrategy
from membench.steps.real import kept_steps
from membench.steps.wrapped.wrapped_step import WrappedStep
from tests.helpers.steps.wrapping import CLASSES, Small, batch, check_loop, loss_of, pair, state_of


def test_two_steps_of_training_and_the_output_are_exact() -> None:
    def loop(module: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(module.parameters(), 0.1)
        losses = []
        for seed in range(2):
            optimizer.zero_grad()
            loss = loss_of(module, seed=seed)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, module(batch()[0])["logits"].detach()

    wrapped = check_loop(loop)
    assert wrapped.wrapped_calls.predicted_peak_bytes > 0


def test_losses_may_be_scaled_and_accumulated() -> None:
    def loop(module: nn.Module) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for seed in range(3):
            scaler.scale(loss_of(module, seed=seed) / 3).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return norm

    check_loop(loop)


def test_frozen_weights_get_no_gradient_but_their_inputs_do() -> None:
    def loop(module: nn.Module) -> Any:
        module.requires_grad_(False)
        images, _ = batch()
        [found] = torch.autograd.grad(module(images.requires_grad_())["logits"].sum(), [images])
        module.head.requires_grad_(True)
        loss_of(module).backward()
        return found

    wrapped = check_loop(loop)
    assert len(wrapped.wrapped_calls.steps) == 2
    assert wrapped.head.weight.grad is not None and wrapped.other.weight.grad is None


def test_modes_and_evaluation_without_gradients_are_exact() -> None:
    def loop(module: nn.Module) -> Any:
        loss_of(module).backward()
        module.eval()
        with torch.no_grad():
            without = module(batch()[0])
        with torch.inference_mode():
            inferred = {name: torch.as_tensor(value) for name, value in module(batch(2)[0]).items() if name != "kind"}
        with_history = module(batch()[0])
        loss_of(module).backward()
        module.train()
        loss_of(module).backward()
        return (without, {name: value.clone() for name, value in inferred.items()}, with_history["logits"].detach())

    check_loop(loop, strategy="eager")


def test_autocast_around_the_call_is_the_modules_own() -> None:
    def loop(module: nn.Module) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(module)
        loss.backward()
        plain = loss_of(module)
        plain.backward()
        return loss.detach(), plain.detach()

    wrapped = check_loop(loop)
    assert len(wrapped.wrapped_calls.steps) == 2


def test_a_smaller_last_batch_is_captured_on_first_use_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    def loop(module: nn.Module) -> Any:
        for size in (4, 3, 4, 3):
            loss_of(module, size).backward()

    with caplog.at_level(logging.INFO, "membench"):
        wrapped = check_loop(loop)
    assert len(wrapped.wrapped_calls.steps) == 2
    sentences = [record.getMessage() for record in caplog.records if record.name == "membench"]
    assert len(sentences) == 2
    assert "captured and planned a call of Small with gradients, in training mode" in sentences[0]
    assert "(3, 3, 6, 6)" in sentences[1] and " s; 2 of at most 32 steps are kept" in sentences[1]


def test_fixed_shapes_refuse_another_call_and_name_it() -> None:
    _, wrapped = pair(shapes="fixed", example=batch()[0])
    loss_of(wrapped).backward()
    with pytest.raises(ShapeMismatch, match=r"\(3, 3, 6, 6\) float32 is not like the .*\(4, 3, 6, 6\) float32, and"):
        loss_of(wrapped, 3)
    with pytest.raises(ShapeMismatch, match=r"\(4, 3, 6, 6\) float64 is not like"):
        wrapped(batch()[0].double())
    wrapped.eval()
    with pytest.raises(ShapeMismatch, match="in evaluation mode"):
        loss_of(wrapped)


def test_a_wrong_dtype_is_named_at_the_first_call() -> None:
    with pytest.raises(UnsupportedModel, match="of float32 and float64 in one product, which PyTorch refuses; convert"):
        membench.wrap(nn.Linear(3, 2))(torch.ones(2, 3, dtype=torch.float64))


def test_the_step_used_the_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_steps, "MOST_KEPT", 2)

    def loop(module: nn.Module) -> Any:
        waiting = loss_of(module, 1 + 1)
        for size in (3, 4, 3, 2):
            loss_of(module, size).backward()
        waiting.backward()

    wrapped = check_loop(loop)
    assert len(wrapped.wrapped_calls.steps) == 2


def test_a_changed_number_of_a_layer_is_captured_again() -> None:
    def loop(module: nn.Module) -> Any:
        loss_of(module).backward()
        module.scale = 0.5
        loss_of(module).backward()
        module.features[3].p = 0.4
        loss_of(module).backward()
        module.options["scale"] = 3.0
        loss_of(module).backward()
        module.options["activation"] = functional.silu
        loss_of(module).backward()
        module.head = nn.Linear(4, CLASSES, bias=False)
        nn.init.ones_(module.head.weight)
        loss_of(module).backward()

    check_loop(loop)


def test_weights_may_be_loaded_cast_and_replaced() -> None:
    def loop(module: nn.Module) -> Any:
        loss_of(module).backward()
        module.load_state_dict({name: each * 2 for name, each in module.state_dict().items()})
        loss_of(module).backward()
        module.load_state_dict({name: each / 2 for name, each in module.state_dict().items()}, assign=True)
        module.zero_grad()
        module.double()
        images, _ = batch()
        outputs = module(images.double())
        outputs["logits"].sum().backward()
        return outputs

    check_loop(loop)


def test_the_wrapped_module_shares_everything_with_the_module() -> None:
    module = Small()
    wrapped = membench.wrap(module)
    assert isinstance(wrapped, Small)
    assert wrapped.state_dict().keys() == module.state_dict().keys()
    assert all(ours is theirs for ours, theirs in zip(wrapped.parameters(), module.parameters(), strict=True))
    wrapped.eval()
    assert not module.training and not module.head.training
    module.scale = 2.0
    assert wrapped.scale == 2.0
    assert repr(wrapped) == repr(module)


def test_a_copy_is_wrapped_as_well_and_a_pickle_is_refused() -> None:
    _, wrapped = pair()
    copied = copy.deepcopy(wrapped)
    loss_of(copied).backward()
    assert wrapped.head.weight.grad is None and copied.head.weight.grad is not None
    assert len(copied.wrapped_calls.steps) == 1 and not wrapped.wrapped_calls.steps
    with pytest.raises(MembenchError, match="cannot be pickled.*save its state_dict"):
        pickle.dumps(wrapped)


def test_an_average_of_the_weights_is_kept_by_torchs_own_class() -> None:
    def loop(module: nn.Module) -> Any:
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for seed in range(2):
            optimizer.zero_grad()
            loss_of(module, seed=seed).backward()
            optimizer.step()
            average.update_parameters(module)
        average.eval()
        with torch.no_grad():
            return average(batch()[0])

    check_loop(loop)


class Nested(nn.Module):
    """Takes and returns dicts and lists of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(11, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, features: list[dict[str, Tensor]], scale: float = 1.0) -> dict[str, Any]:
        scores = self.score((self.embed(ids) + features[0]["pitch"]).sum(1)) * scale
        return {"scores": [scores, (scores.exp(), features[0])], "count": len(features)}


def test_nested_batches_and_outputs_are_exact() -> None:
    def loop(module: nn.Module) -> Any:
        pitch = torch.randn(2, 5, 8, requires_grad=True)
        found = module(torch.randint(11, (2, 5)), [{"pitch": pitch}], 0.5)
        named = module(features=[{"pitch": pitch}], ids=torch.randint(11, (2, 5)))
        assert found["scores"][1][1]["pitch"] is pitch and found["count"] == 1
        (found["scores"][0].square().sum() + named["scores"][1][0].mean()).backward()
        return pitch.grad, found["scores"][0].detach()

    check_loop(loop, Nested, strategy="memonger")


def test_a_profile_of_the_user_s_goes_on_while_a_call_is_captured() -> None:
    _, wrapped = pair()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(3).exp()
        loss_of(wrapped).backward()
        torch.ones(3).sin()
    assert {"aten::exp", "aten::sin"} <= {event.name for event in profile.events()}


@dataclass
class Answer:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None


class Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor, *, labels: Tensor | None = None) -> Answer:
        hidden = self.encoder(tokens)
        logits = self.head(hidden)
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Answer(logits, (hidden,), loss)


torch.export.register_dataclass(Answer)


@pytest.mark.parametrize("strategy", ["eager", "layrub_hybrid", "memonger", "gist"])
def test_a_transformer_that_returns_a_registered_dataclass_is_exact(strategy: str) -> None:
    def loop(module: nn.Module) -> Any:
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randn(2, 5, 8, generator=generator)
        labels = torch.randint(CLASSES, (2, 5), generator=generator)
        answer = module(tokens, labels=labels)
        (answer.loss + answer.hidden[0].mean()).backward()
        return answer.logits.detach(), answer.hidden[0].detach(), answer.loss.detach()

    check_loop(loop, Answering, strategy=strategy)


def test_hooks_of_the_module_and_of_gradients_run_in_every_step() -> None:
    def loop(module: nn.Module) -> Any:
        seen: list[Any] = []
        module.register_forward_hook(lambda *_: seen.append(1.0))
        module.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
        module.register_full_backward_hook(lambda _, *gradients: seen.append(gradients))
        module[0].weight.register_hook(lambda gradient: gradient * 3)
        module[2].weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
        for _ in range(2):
            module(torch.ones(2, 3, requires_grad=True)).square().sum().backward()
        return seen

    check_loop(loop, lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)))


def test_a_forward_that_a_program_puts_another_around_runs_under_the_strategy() -> None:
    def loop(module: nn.Module) -> Any:
        before = module.forward
        assert not hasattr(before, "__wrapped__")  # following it would leave the strategy out
        assert list(inspect.signature(before).parameters) == ["images", "bias"]
        module.kept_method = before  # as accelerate does
        module.forward = MethodType(torch.autocast("cpu", torch.bfloat16)(before.__func__), module)
        loss = loss_of(module)
        loss.backward()
        copied = copy.deepcopy(module)
        loss_of(copied).backward()
        del module.forward
        with pytest.raises(AttributeError):
            del module.forward
        loss_of(module).backward()
        return loss.detach(), state_of(copied)

    wrapped = check_loop(loop)
    assert len(wrapped.wrapped_calls.steps) == 2


def test_a_budget_is_kept_or_refused_at_once() -> None:
    images, _ = batch()
    _, wrapped = pair(budget="1 MB", example=images)
    assert wrapped.wrapped_calls.predicted_peak_bytes < 2**20
    with pytest.raises(InfeasibleSchedule, match="a budget of 1.0 KB is too small"):
        membench.wrap(Small(), budget="1 KB", example=images)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"module": 3}, "the module is a torch.nn.Module"),
        ({"backend": "simulated"}, "no backend 'simulated' for a wrapped module"),
        ({"shapes": "dynamic"}, "shapes 'dynamic' is not known.* are: fixed, any"),
        ({"strategy": "none"}, "strategy 'none' is not known"),
        ({"budget": "many"}, "budget"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((MembenchError, UnsupportedStrategy), match=message):
        membench.wrap(**{"module": Small(), **arguments})


def test_a_wrapped_module_is_not_captured_again() -> None:
    wrapped = membench.wrap(Small())
    with pytest.raises(MembenchError, match="wrapped already"):
        membench.wrap(wrapped)
    with pytest.raises(MembenchError, match="pass the module that was wrapped"):
        membench.compile(wrapped, lambda output, targets: output["logits"].sum(), batch())


def test_the_predicted_peak_is_known_once_a_call_was_captured() -> None:
    wrapped = membench.wrap(Small())
    with pytest.raises(MembenchError, match="has not been called"):
        _ = wrapped.wrapped_calls.predicted_peak_bytes
    loss_of(wrapped)
    assert isinstance(wrapped.wrapped_calls.steps[0], WrappedStep)
    wrapped.wrapped_calls.close()
    assert wrapped.wrapped_calls.steps == ()


def test_a_module_that_cannot_be_captured_is_refused_with_its_layer() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            made: Tensor = self.layer(inputs)
            return made if made.sum() > 0 else -made

    with pytest.raises(UnsupportedModel, match="Python reads the value of a tensor"):
        membench.wrap(Reading())(torch.ones(2, 2))
