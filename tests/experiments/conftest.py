import pytest

from membench.configuration import ROOT
from membench.experiment import Paper
from membench.suite.papers import known_papers, load_paper

EXPERIMENTS = ROOT / "experiments"


@pytest.fixture(scope="session", params=known_papers(EXPERIMENTS))
def paper(request: pytest.FixtureRequest) -> Paper:
    return load_paper(EXPERIMENTS / request.param)
