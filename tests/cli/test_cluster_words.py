"""The cluster that a command line chooses, and the device that it brings along."""

import pytest

from membench.cli.cluster_words import device_words, read_cluster
from membench.core.errors import MembenchError


def test_a_cluster_brings_its_device_along_and_others_have_any() -> None:
    assert read_cluster({"cluster": "dgx_h100", "device": "t4"}) == ("dgx_h100", "h100")
    assert read_cluster({"cluster": "one"}) == ("one", "")
    for given in ({"cluster": "dgx_h100"}, {"cluster": "dgx_h100", "device": "h100"}):
        assert device_words(given) == ["device=h100"]
    assert device_words({"cluster": "one", "device": "t4"}) == ["device=t4"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cluster": "dgx_h10"}, "cluster 'dgx_h10' is not known; did you mean 'dgx_h100'"),
        ({"cluster": "dgx_h100", "device": "t4"}, "the GPUs of cluster dgx_h100 are h100"),
        ({"cluster": "one"}, "cluster one may have any device"),
    ],
)
def test_a_device_that_a_cluster_does_not_have_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        device_words(given)
