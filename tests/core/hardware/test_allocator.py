"""Settings of PyTorch's caching allocator, as text and as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from membench.core.errors import MembenchError
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.units import MIB


def test_settings_are_pytorch_s() -> None:
    assert AllocatorSettings.parse("") == AllocatorSettings.parse("expandable_segments:False")
    both = AllocatorSettings.parse("expandable_segments:True, max_split_size_mb:128")
    assert both == AllocatorSettings(expandable_segments=True, max_split_bytes=128 * MIB)


@given(some.booleans(), some.none() | some.integers(21, 10_000).map(MIB.__mul__))
def test_their_text_is_read_again(expandable: bool, split: int | None) -> None:
    settings = AllocatorSettings(expandable, split)
    assert AllocatorSettings.parse(str(settings)) == settings


@pytest.mark.parametrize("text", ["roundup_power2_divisions:4", "max_split_size_mb:20", "expandable_segments:1"])
def test_another_setting_is_refused_by_name(text: str) -> None:
    with pytest.raises(MembenchError, match=text):
        AllocatorSettings.parse(text)
