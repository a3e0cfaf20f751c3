"""The attention that the installed torch chooses on absent cards: its compiled code under our CUDA runtime."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

_FOLDER = Path(__file__).parent
_EMPTY_MACROS = ["CUDARTAPI", "CUDARTAPI_CDECL", "__host__", "__device__", "__device_builtin__", "__cudart_builtin__",
                 "__device_builtin_texture_type__", "__device_builtin_surface_type__", "__builtin_align__(x)",
                 "__align__(x)"]  # fmt: skip
"""Of the compiler's headers, which the packages of the runtime do not have."""


@dataclass(frozen=True)
class Layout:
    """A tensor without data.

    Attributes:
        is_transposed: its last two dimensions lie in memory in the other order.
        offset: elements before the first one.
    """

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = False
    is_transposed: bool = False
    offset: int = 0

    def meta(self) -> Tensor:
        """Return it on the meta device."""
        shape = (*self.shape[:-2], *self.shape[:-3:-1]) if self.is_transposed else self.shape
        dense = torch.empty(shape, device="meta")
        dtype = getattr(torch, self.dtype)
        stride = dense.mT.stride() if self.is_transposed else dense.stride()
        memory = torch.empty(dense.numel() + self.offset, dtype=dtype, device="meta")
        return memory.as_strided(self.shape, stride, self.offset).requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class Case:
    """A call of attention.

    Attributes:
        switches: whether cuDNN's, flash, memory-efficient attention and the unfused formula are allowed.
    """

    query: Layout
    key: Layout
    value: Layout
    mask: Layout | None = None
    dropout: float = 0.0
    is_causal: bool = False
    is_grouped: bool = False
    switches: tuple[bool, bool, bool, bool] = (True, True, True, True)


def set_switches(switches: Sequence[bool]) -> None:
    """Allow kernels; see `Case`."""
    cuda = torch.backends.cuda
    names = ("enable_cudnn_sdp", "enable_flash_sdp", "enable_mem_efficient_sdp", "enable_math_sdp")
    for name, is_on in zip(names, switches, strict=True):
        getattr(cuda, name)(is_on)


def headers() -> Path | None:
    """Return the folder of the runtime's headers, None if torch is not built for CUDA or they are missing."""
    found = find_spec("nvidia") if torch.version.cuda else None
    folders = list(found.submodule_search_locations or []) if found else []
    found_in = (path.parent for each in folders for path in Path(each).glob("cu*/include/cuda_runtime_api.h"))
    return next(found_in, None)


def choices_of_torch(cards: Sequence[str], cases: Sequence[Case], folder: Path) -> list[list[str]]:
    """Return by card, ``"9.0"``, torch's choice in `SDPBackend` for each case, ``"ERROR"`` where it refuses.

    Args:
        cards: whose order of kernels is the same: a process keeps that of the first one.
        folder: for what is built.
    """
    found = headers()
    assert found is not None
    library = folder / "runtime.so"
    (folder / "crt").mkdir(exist_ok=True)
    (folder / "crt" / "host_defines.h").touch()
    macros = ["-D__forceinline__=inline", *(f"-D{name}=" for name in _EMPTY_MACROS)]
    compiler = ["c++", "-shared", "-fPIC", "-w", f"-I{folder}", f"-I{found}", *macros]
    subprocess.run([*compiler, str(_FOLDER / "runtime.cpp"), "-o", str(library)], check=True)
    finished = subprocess.run(
        [sys.executable, "-m", f"{__name__}.choosing", str(library)],
        input=json.dumps([asdict(case) for case in cases]),
        env={**os.environ, "CARDS": " ".join(cards), "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not finished.returncode, finished.stderr
    answers: list[list[str]] = json.loads(finished.stdout)
    return answers
