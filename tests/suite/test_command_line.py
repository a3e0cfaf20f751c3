"""A wrong word on the command line gets one line that says what there is."""

import pytest

from membench.errors import MembenchError
from membench.suite.command_line import check_arguments


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["model=lenet", "batch_size=4"],
        ["-m", "model=lenet,alexnet", "batch_size=1,2"],
        ["strategy=layrub_hybrid", "strategy.fixed_region=true"],
        ["budget=200 MB"],
    ],
)
def test_accepts(arguments: list[str]) -> None:
    check_arguments(arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=resnet51"], r"model 'resnet51' is not known; there are: alexnet, .*resnet50"),
        (["strategy=magic"], r"strategy 'magic' is not known; there are: .*eager, .*layrub_hybrid"),
        (["device=tpu"], r"device 'tpu' is not known; there are: .*k40_modnn, k40_vdnn"),
        (["backend=tpu"], r"backend 'tpu' is not known; there are: cpu, cuda, simulated"),
        (["-m", "model=lenet,resnet51"], "model 'resnet51' is not known"),
        (["speed=3"], "'speed' is not an option; there are: model, .*batch_size, seed, budget"),
        (["strategy.speed=3"], "'strategy.speed' is not an option; there are: "),
        (["group/model=3"], "'group/model' is not an option; there are: model"),
        (["+speed=3"], r"'\+speed=3' is no choice; write option=value"),
        (["model"], "Error parsing override 'model'"),
        (["batch_size=0"], "batch_size is a positive number of images, not 0"),
        (["batch_size=many"], "batch_size is a positive number of images, not 'many'"),
        (["-m", "batch_size=1,-1"], "batch_size is a positive number of images, not -1"),
        (["seed=1.5"], "seed is a whole number, not 1.5"),
        (["budget=small"], "budget: 'small' is not a size"),
        (["cluster=cloud"], "cluster 'cloud' is not known; there are: layrub_two_nodes, modnn_k40x4, one"),
        (["exchange=never"], "there is no exchange 'never'; choose one of as_made, at_end"),
        (["timeout_s=0"], "timeout_s is a positive number of seconds, not 0"),
        (["model=3"], "Config group override must be a string"),
    ],
)
def test_refuses_in_one_line(arguments: list[str], expected: str) -> None:
    with pytest.raises(MembenchError, match=expected) as refused:
        check_arguments(arguments)
    assert "\n" not in str(refused.value)
    assert "http" not in str(refused.value)
