import pytest

from membench.papers.experiment import Paper
from membench.papers.loader import known_papers, load_paper
from tests.helpers.papers import EXPERIMENTS


@pytest.fixture(scope="session", params=known_papers(EXPERIMENTS))
def paper(request: pytest.FixtureRequest) -> Paper:
    return load_paper(EXPERIMENTS / request.param)
