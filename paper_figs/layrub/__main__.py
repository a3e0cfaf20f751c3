"""`python -m paper_figs.layrub` draws every figure of the paper anew from results/layrub."""

from importlib import import_module
from pathlib import Path

from paper_figs.style import save, use_style

use_style()
for script in sorted(Path(__file__).parent.glob("*[0-9].py")):
    save(import_module(f"paper_figs.layrub.{script.stem}").draw(), script)
