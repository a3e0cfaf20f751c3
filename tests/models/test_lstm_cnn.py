from collections.abc import Callable

import torch
from torch import nn

from membench.models.lstm_cnn import LSTMCNN


def test_parameters_of_lrcn(configured_model: Callable[[str], nn.Module]) -> None:
    """Written out from the authors' Caffe definition."""
    expected = 96 * 3 * 7**2 + 96  # conv1
    expected += 384 * (96 // 2) * 5**2 + 384
    expected += 512 * 384 * 3**2 + 512
    expected += 512 * (512 // 2) * 3**2 + 512
    expected += 384 * (512 // 2) * 3**2 + 384  # conv5
    expected += 4096 * (384 * 6**2) + 4096  # fc6
    expected += 4 * 256 * (4096 + 256 + 1)
    expected += 101 * 256 + 101
    actual = sum(parameter.numel() for parameter in configured_model("lstm_cnn").parameters())
    assert actual == expected


def test_feature_maps_have_the_sizes_of_caffe(configured_model: Callable[[str], nn.Module]) -> None:
    sizes = {}
    x = torch.empty(2, 3, 227, 227, device="meta")
    for name, layer in configured_model("lstm_cnn").features.named_children():
        x = layer(x)
        sizes[name] = tuple(x.shape[1:])
    assert (sizes["conv1"], sizes["norm1"]) == ((96, 111, 111), (96, 55, 55))
    assert (sizes["conv2"], sizes["norm2"]) == ((384, 26, 26), (384, 13, 13))
    assert (sizes["conv5"], sizes["pool5"], sizes["drop6"]) == ((384, 13, 13), (384, 6, 6), (4096,))


def test_a_batch_holds_all_videos_frame_by_frame() -> None:
    """A video's logits depend on its own earlier frames and on no other video's."""
    network = LSTMCNN(nn.Flatten(), feature_size=4, hidden_size=5, frames=3, classes=6).eval()
    images = torch.randn(3 * 2, 1, 2, 2)  # three frames of two videos
    logits = network(images)
    assert logits.shape == (6, 6)
    torch.testing.assert_close(network(images[::2]), logits[::2])
    images[4] += 1  # the last frame of the first video
    changed = (network(images) != logits).any(1)
    assert changed.tolist() == [False, False, False, False, True, False]
