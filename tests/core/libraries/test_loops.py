"""A compiled loop is compiled again when a module beside it has changed."""

import os
import subprocess
import sys
from pathlib import Path

OUTER = """
from constants import FACTOR
from membench.core.libraries.loops import compiled

@compiled
def scaled(number: float) -> float:
    return FACTOR * number

print(scaled(2.0))
"""


def test_a_constant_of_another_module_is_not_the_one_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "MEMBENCH_CACHE": str(tmp_path / "cache")}
    for factor in (3, 5):
        (tmp_path / "constants.py").write_text(f"FACTOR = {factor}")
        command = [sys.executable, "-B", "-c", "import outer"]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout == f"{2 * factor:.1f}\n"
    assert len(list((tmp_path / "cache" / "loops").iterdir())) == 2
