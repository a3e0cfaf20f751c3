"""Files that cannot be written."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from membench.core.files import append_line, complaint, write_whole

PROGRAM = """
import resource, signal, sys
from pathlib import Path
from membench.core.files import append_line, complaint, write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    {"write": write_whole, "append": append_line}[sys.argv[2]](Path(sys.argv[1]), 1000 * "x")
except OSError as error:
    print(complaint(error))
"""


@pytest.mark.parametrize("how", ["write", "append"])
def test_a_full_disk_is_reported_with_the_file_and_leaves_the_old_content(how: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_whole(path, "before")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), how], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{path}: File too large; make room there, or name another place\n"
    assert [(each, each.read_text()) for each in tmp_path.iterdir()] == [(path, "before")]


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in ("a", "ü"):
        append_line(path, line)
    assert path.read_text() == "a\nü\n"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere/record\.json") as refused:
        write_whole(tmp_path / "nowhere" / "record.json", "")
    assert complaint(refused.value).endswith("name a place that can be read and written")


def test_an_error_without_a_file_is_reported_unchanged() -> None:
    assert complaint(OSError(errno.ENOSPC, "No space left on device")).startswith(
        "what is printed, or a temporary file: No space left"
    )
    assert complaint(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) == f"[Errno {errno.ECONNREFUSED}] refused"
