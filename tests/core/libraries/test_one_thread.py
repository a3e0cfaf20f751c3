"""What a thread changes in a library: seen by it alone, and put back in any order."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from membench.core.libraries.one_thread import Here, attribute_here, in_this_thread, replaced, switched


class Owner:
    is_on = True

    def method(self, number: int) -> str:
        return f"original {number}"

    @staticmethod
    def function(number: int) -> str:
        return f"original {number}"


class Inheriting(Owner):
    pass


def in_another_thread(function: Callable[[], Any]) -> Any:
    found = []
    thread = Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("owner", [Owner, Inheriting])
def test_another_function_runs_in_this_thread_alone(owner: type[Owner]) -> None:
    before = dict(vars(owner))
    with (
        replaced(owner, "method", lambda _, number: f"other {number}"),
        replaced(owner, "function", lambda number: f"other {number}"),
    ):
        for call in (lambda: owner().method(1), lambda: owner.function(1), lambda: owner().function(1)):
            assert call() == "other 1"
            assert in_another_thread(call) == "original 1"
    assert dict(vars(owner)) == before


def test_a_switch_and_a_modules_attribute_are_another_threads_own() -> None:
    module = ModuleType("library")
    module.value = original = object()  # type: ignore[attr-defined]
    other = object()
    with switched(Owner, "is_on", to=False), attribute_here(module, "value", other):
        assert not Owner.is_on
        assert module.value is other
        assert in_another_thread(lambda: bool(Owner.is_on))
        assert in_another_thread(lambda: module.value) is original
    assert Owner.is_on is True
    assert module.value is original
    assert type(module) is ModuleType


@contextmanager
def _of_another_program() -> Any:
    before = Owner.method
    Owner.method = lambda self, number: "wrapped " + before(self, number)  # type: ignore[method-assign]
    yield
    Owner.method = before  # type: ignore[method-assign]


def test_they_are_put_back_in_any_order() -> None:
    ours, theirs = ExitStack(), ExitStack()
    before = Owner.method
    ours.enter_context(replaced(Owner, "method", lambda _, number: f"other {number}"))
    theirs.enter_context(_of_another_program())
    assert Owner().method(1) == "wrapped other 1"
    ours.close()
    assert Owner().method(1) == "wrapped original 1"
    theirs.close()
    assert Owner().method(1) == "original 1"
    Owner.method = before  # type: ignore[method-assign]


def test_an_exception_puts_them_back() -> None:
    before = dict(vars(Owner))
    with pytest.raises(KeyError), replaced(Owner, "method", lambda *_: ""), switched(Owner, "is_on", to=False):
        raise KeyError
    assert dict(vars(Owner)) == before


def test_a_function_does_nothing_in_another_thread() -> None:
    called = in_this_thread(lambda: 1)
    assert called() == 1
    assert in_another_thread(called) is None


def test_a_condition_that_has_ended_holds_nowhere() -> None:
    here = Here()
    assert here
    assert not in_another_thread(lambda: bool(here))
    here.end()
    assert not here
