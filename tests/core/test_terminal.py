"""Lines are as long as the terminal, and whole elsewhere."""

import io
import sys

import pytest

from membench.core.terminal import columns, complain, has_styles, progress_bar, show


def test_what_is_no_terminal_has_whole_lines_without_styles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert columns() is None and not has_styles()
    show(["word " * 40])
    assert capsys.readouterr().out == f"{'word ' * 40}\n"
    monkeypatch.setenv("COLUMNS", "40")
    assert columns() == 40
    show(["word " * 40])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_an_error_is_one_line_in_a_file_of_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    complain("membench run", "word " * 40)
    assert capsys.readouterr().err == f"membench run: {'word ' * 40}\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_styles_unless_the_user_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_styles(_Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_styles(_Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not has_styles(_Terminal())


def test_progress_is_shown_in_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("cells", "cell", 2) as bar:
        bar.update()
    assert not capsys.readouterr().err
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("cells", "cell", 2) as bar:
        bar.update()
    assert "cells" in terminal.getvalue()
