"""Triton's kernels: the same bytes as the CPU's loops, in Triton's interpreter; and machine code for a GPU."""

import os
import subprocess
import sys
from typing import Any

import pytest

from membench.codecs.values import FORMATS

triton = pytest.importorskip("triton", reason="Triton is not installed")
TARGET = ("cuda", 90, 32)
COLUMNS = 256


@pytest.mark.slow
def test_triton_kernels_write_the_same_bytes_as_cpu_loops() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.helpers.kernels.interpreted"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip().endswith("agreed"), run.stderr


def compiled(kernel: Any, *arguments: object) -> bytes:
    """Return a kernel's machine code; a string is an argument of that type, everything else a constant."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        name: argument if isinstance(argument, str) else "constexpr"
        for name, argument in zip(kernel.arg_names, arguments, strict=True)
    }
    constants = {(i,): a for i, a in enumerate(arguments) if not isinstance(a, str)}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    code: bytes = triton.compile(source, target=GPUTarget(*TARGET)).asm["cubin"]
    return code


@pytest.mark.exhaustive
@pytest.mark.parametrize("integer", ["i32", 1])
@pytest.mark.parametrize("name", FORMATS)
def test_the_kernels_of_rows_compile_for_a_gpu(name: str, integer: str | int) -> None:
    """Triton compiles an argument that is 1, such as the rows of a small activation, as a constant."""
    from membench.codecs import cuda_rows

    kept_as = FORMATS[name]
    ends, columns = ("*i32", "*i32") if name == "fp32" else ("*u16", "*u8")
    codes = {32: "*i32", 16: "*u16"}.get(kept_as.bits, "*u8")
    arrays, of_map = ("*i32", "*i32", ends, codes, columns), (integer, integer, integer, COLUMNS)
    assert compiled(cuda_rows.count_kernel, "*i32", ends, integer, integer, COLUMNS, 16, COLUMNS)
    assert compiled(cuda_rows.sum_rows_kernel, ends, "*i32", integer, integer, 1024)
    assert compiled(cuda_rows.sum_blocks_kernel, "*i32", integer, 1024)
    assert compiled(cuda_rows.scatter_kernel, *arrays, *of_map, *kept_as, 16, COLUMNS)
    assert compiled(cuda_rows.decode_kernel, *arrays, *of_map[1:], kept_as.bits, 16, COLUMNS)
    if name == "fp10":
        assert compiled(cuda_rows.pack_kernel, *arrays, *of_map, *kept_as, 256)


@pytest.mark.exhaustive
def test_the_kernels_of_the_mask_compile_for_a_gpu() -> None:
    from membench.codecs import cuda_mask

    for integer in ("i32", 1):
        assert compiled(cuda_mask.encode_kernel, "*fp32", "*u8", integer, 512)
        assert compiled(cuda_mask.decode_kernel, "*u8", "*fp32", integer, 512)
