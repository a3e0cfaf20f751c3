"""`python -m paper_figs layrub` draws every figure of a paper anew from results/layrub; without a name, of each paper."""

import sys
from importlib import import_module
from pathlib import Path

from paper_figs.style import save, use_style

HERE = Path(__file__).parent

use_style()
for paper in sys.argv[1:] or sorted(path.name for path in HERE.iterdir() if list(path.glob("*[0-9].py"))):
    for script in sorted((HERE / paper).glob("*[0-9].py")):
        save(import_module(f"paper_figs.{paper}.{script.stem}").draw(), script)
