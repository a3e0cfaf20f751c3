import pytest

from membench.core.graph.task_graph import TaskGraph
from tests.helpers.planning.four_tasks import four_tasks, input_on_host


@pytest.fixture
def graph() -> TaskGraph:
    return four_tasks()


@pytest.fixture
def visited() -> TaskGraph:
    return input_on_host()
