"""The number of threads follows from the network, unless the user has chosen it, and is given back."""

from dataclasses import replace

import pytest
import torch

from membench.core.graph.task_graph import Kind, TaskGraph
from membench.lab.training.threads import OPERATIONS_PER_THREAD, USER_S_VARIABLE, threads_for, use_threads
from tests.helpers.planning.chains import chain_of_kinds


def graph(operations: int) -> TaskGraph:
    chain = chain_of_kinds(Kind.CONVOLUTION, Kind.LINEAR)
    return replace(chain, tasks=tuple(replace(task, operations=operations) for task in chain.tasks))


def test_an_average_task_decides_up_to_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(USER_S_VARIABLE, raising=False)
    sizes = [0, OPERATIONS_PER_THREAD, 3 * OPERATIONS_PER_THREAD, 100 * OPERATIONS_PER_THREAD]
    assert [threads_for(graph(size), available=8) for size in sizes] == [1, 1, 3, 8]


def test_the_user_s_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_S_VARIABLE, "4")
    assert threads_for(graph(0), available=4) == 4


def test_the_previous_number_returns_after_an_error() -> None:
    before, within = torch.get_num_threads(), []

    def fail() -> None:
        with use_threads(before + 1):
            within.append(torch.get_num_threads())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert within == [before + 1]
    assert torch.get_num_threads() == before
