from pathlib import Path

import pytest

from membench.experiment import Paper
from membench.suite.papers import load_paper

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="session", params=sorted(path.parent.name for path in EXPERIMENTS.glob("*/paper.yaml")))
def paper(request: pytest.FixtureRequest) -> Paper:
    return load_paper(EXPERIMENTS / request.param)
