import pytest
import torch
from torch import nn

from membench.models.googlenet import GoogLeNet, GoogLeNetLoss


@pytest.fixture(scope="module")
def model() -> GoogLeNet:
    with torch.device("meta"):
        return GoogLeNet()


def test_parameters_are_those_of_caffe(model: GoogLeNet) -> None:
    counts = {True: 0, False: 0}
    for name, parameter in model.named_parameters():
        counts[name.startswith("auxiliary")] += parameter.numel()
    assert counts == {False: 6_998_552, True: 6_379_728}
    assert sum(counts.values()) == 13_378_280


def test_is_22_layers_deep(model: GoogLeNet) -> None:
    """Table 1: three convolutions, two on the longest path of each inception module, one linear layer."""
    stem_and_classifier = [model.conv1, model.reduce2, model.conv2, model.classifier]
    inceptions = [name for name, _ in model.named_children() if name.startswith("inception")]
    assert len(stem_and_classifier) + 2 * len(inceptions) == 22


def test_feature_maps_have_the_sizes_of_table_1(model: GoogLeNet) -> None:
    sizes = {}
    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: sizes.update({name: tuple(out.shape[1:])}))
        for name, module in model.named_children()
    ]
    model(torch.empty(2, 3, 224, 224, device="meta"))
    for hook in hooks:
        hook.remove()
    assert sizes["conv1"] == (64, 112, 112)
    assert sizes["pool1"] == (64, 56, 56)
    assert sizes["pool2"] == (192, 28, 28)
    assert sizes["inception3b"] == (480, 28, 28)
    assert sizes["inception4a"] == (512, 14, 14)
    assert sizes["inception4e"] == (832, 14, 14)
    assert sizes["inception5b"] == (1024, 7, 7)
    assert sizes["pool5"] == (1024, 1, 1)


def test_auxiliary_classifiers_exist_in_training_only(model: GoogLeNet) -> None:
    images = torch.empty(2, 3, 224, 224, device="meta")
    assert [tuple(logits.shape) for logits in model.train()(images)] == 3 * [(2, 1000)]
    logits = model.eval()(images)
    model.train()
    assert logits.shape == (2, 1000)


def test_loss_weighs_the_auxiliary_classifiers_with_three_tenths() -> None:
    outputs = tuple(torch.randn(4, 10) for _ in range(3))
    target = torch.arange(4)
    main, first, second = (nn.functional.cross_entropy(logits, target) for logits in outputs)
    loss = GoogLeNetLoss()(outputs, target)
    torch.testing.assert_close(loss, main + 0.3 * first + 0.3 * second)
