"""AllocatorSettings: how PyTorch's caching allocator takes memory from a device."""

from dataclasses import dataclass

from membench.core.errors import MembenchError
from membench.core.units import MIB


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of PyTorch's caching allocator.

    Attributes:
        expandable_segments: see `membench.planning.memory.expandable_allocator`.
        max_split_bytes: see `membench.planning.memory.segment_allocator`; without effect with expandable segments.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> "AllocatorSettings":
        """Return the settings of a text as in ``PYTORCH_ALLOC_CONF``.

        Args:
            text: ``"expandable_segments:True"``, ``"max_split_size_mb:128"`` (MiB), both with a comma, or empty.

        Raises:
            MembenchError: another setting, or another value.
        """
        settings = cls()
        for part in filter(None, text.replace(" ", "").split(",")):
            name, _, value = part.partition(":")
            if name == "expandable_segments" and value in ("True", "False"):
                settings = cls(value == "True", settings.max_split_bytes)
            elif name == "max_split_size_mb" and value.isdecimal() and int(value) > 20:
                settings = cls(settings.expandable_segments, int(value) * MIB)
            else:
                raise MembenchError(
                    f"the allocator's setting {part!r} is not simulated; choose of expandable_segments:True and "
                    "max_split_size_mb:N with N above 20"
                )
        return settings

    def __str__(self) -> str:
        """The text that `parse` reads."""
        split = self.max_split_bytes
        parts = ["expandable_segments:True"] if self.expandable_segments else []
        return ",".join([*parts, *([] if split is None else [f"max_split_size_mb:{split // MIB}"])])


DEFAULT = AllocatorSettings()
"""What PyTorch does without ``PYTORCH_ALLOC_CONF``."""
