"""What a visit of fifteen minutes to a GPU measures, in parts, each with a limit; see README.md in this folder.

    python -m benchmarks.gpu_visit FOLDER                            all parts
    python -m benchmarks.gpu_visit FOLDER --parts a,b,c              some
    python -m benchmarks.gpu_visit FOLDER --backend cpu --small      to try it without a GPU; or emulated

Each part is a process, and writes FOLDER/<part>.jsonl, a row at a time. The same command continues where it was
stopped.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu_visit.part import PARTS, Part
from benchmarks.gpu_visit.rows import COMMIT_VARIABLE, Rows
from membench.backends.accelerator_memory import ALLOCATOR_ENVIRONMENT
from membench.core.configuration import ROOT

EMULATOR = ROOT / "tests" / "helpers" / "emulator" / "plugin"
BACKENDS = ("cuda", "cpu", "emulated")

OF_TRIALS = 5
"""How many times its limit a part has with ``--small``, which tries it on any machine, however busy."""


def main(options: argparse.Namespace) -> int:
    """Run the parts, and return how many ended with an error."""
    results = [run_part(letter, PARTS[letter], options) for letter in options.parts]
    return sum(results)


def run_part(letter: str, part: Part, options: argparse.Namespace) -> bool:
    """Run a part in a process of its own until its limit; return whether it ended with an error."""
    words = [letter, str(options.folder), options.backend, *(["--small"] if options.small else [])]
    command = [sys.executable, "-m", "benchmarks.gpu_visit.part", *words]
    limit_s = part.limit_s * (OF_TRIALS if options.small else 1)
    start_s = time.perf_counter()
    process = subprocess.Popen(command, env=environment(part, options), start_new_session=True)
    try:
        failed, ended = process.wait(limit_s) != 0, "ended"
    except subprocess.TimeoutExpired:
        failed, ended = False, "was stopped at its limit"
    finally:
        with suppress(ProcessLookupError):  # what it has started ends with it
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    took_s = time.perf_counter() - start_s
    found = summary(Rows(options.folder / f"{letter}.jsonl", options.backend))
    print(
        f"{letter}: {part.title} {'failed' if failed else ended} after {took_s:.0f} of {limit_s} s; {found}", flush=True
    )
    return failed


def environment(part: Part, options: argparse.Namespace) -> Mapping[str, str]:
    """Return the variables of a part's process, which CUDA, torch and Inductor read when they start."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if part.expands_segments:
        found |= ALLOCATOR_ENVIRONMENT
    if options.backend == "emulated":
        paths = [str(EMULATOR), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        found |= {"MEMBENCH_TEST_DEVICE": "emulated", "PYTHONPATH": os.pathsep.join(paths)}
    if options.commit:
        found[COMMIT_VARIABLE] = options.commit
    return found


def summary(rows: Rows) -> str:
    """Return the numbers of rows by what became of them."""
    last = {row["row"]: row for row in rows.read()}.values()
    failed = sum("error" in row for row in last)
    not_run = sum("not_run" in row for row in last)
    return f"{len(last) - failed - not_run} rows, {failed} failed, {not_run} not run"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the rows")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help="such as a,b,c")
    parser.add_argument("--backend", choices=BACKENDS, default="cuda")
    parser.add_argument("--small", action="store_true", help="the smallest networks and tensors")
    parser.add_argument("--commit", default="", help="of the files, where they lie without their history")
    return parser.parse_args(words)  # fmt: skip


def _parts(text: str) -> list[str]:
    letters = text.split(",")
    if unknown := [letter for letter in letters if letter not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}; choose of {', '.join(PARTS)}")
    return letters


if __name__ == "__main__":
    sys.exit(main(arguments()))
