import pytest

from membench.lab.papers.reading.experiment import Paper
from membench.lab.papers.reading.loader import known_papers, load_paper
from tests.helpers.lab.papers import EXPERIMENTS


@pytest.fixture(scope="session", params=known_papers(EXPERIMENTS))
def paper(request: pytest.FixtureRequest) -> Paper:
    return load_paper(EXPERIMENTS / request.param)
