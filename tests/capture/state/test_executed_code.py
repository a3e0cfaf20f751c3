"""The code that runs in a trace, and no other, names what a step may have read."""

import sys
import threading
from typing import Any

from membench.capture.state.executed_code import ExecutedCode, is_of_program


def read(held: Any) -> Any:
    return getattr(held, "late", held.early)


def other(held: Any) -> Any:
    return held.never


class Held:
    early = late = never = 1


def test_names_are_those_of_the_functions_that_ran() -> None:
    with ExecutedCode() as code:
        read(Held())
    assert {"early", "late"} <= code.names and "never" not in code.names
    assert [of.co_name for of, variables in code.of_program() if variables is globals()] == ["read"]
    assert sys.getprofile() is None


def test_what_runs_while_it_is_paused_or_in_another_thread_is_left_out() -> None:
    code = ExecutedCode()
    with code.paused():
        other(Held())
    assert sys.getprofile() is None
    with code:
        thread = threading.Thread(target=other, args=(Held(),))
        thread.start()
        with code.paused():
            other(Held())
        read(Held())
        thread.join()
    assert "never" not in code.names and "late" in code.names


def test_a_profile_function_of_the_program_is_set_again() -> None:
    def profile(*_: Any) -> None:
        pass

    sys.setprofile(profile)
    try:
        with ExecutedCode():
            read(Held())
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


def test_libraries_that_compute_are_not_the_program() -> None:
    assert not any(map(is_of_program, ("torch.nn.functional", "numpy", "os.path", "membench.core.graph.call")))
    assert all(map(is_of_program, ("__main__", "transformers.models.gpt2", "tests.capture")))
