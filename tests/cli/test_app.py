"""`membench app`: its options, its refusal without Panel, and the page in a real browser."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from membench.cli.app import ADDRESS, Options, parse
from membench.cli.main import main
from membench.core.errors import MembenchError
from tests.helpers.browser import WIDTHS, Visit, chromium

_SELECT = """
place => Bokeh.documents.flatMap(each => [...each._all_models.values()])
    .filter(each => each.type === "ColumnDataSource" && each.data.peak)
    .forEach(each => { each.selected.indices = [place] })
"""


def test_the_port_is_a_number() -> None:
    assert parse(["port=8080", "show=false"]) == Options(8080, show=False)
    with pytest.raises(MembenchError, match="port"):
        parse(["port=web"])


def test_without_panel_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "panel", None)
    assert main(["app"]) == 2
    assert "pip install 'membench[app]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    """The page's address; the server ends with the tests."""
    pytest.importorskip("panel", reason="pip install 'membench[app]': no panel")
    with socket.socket() as free:
        free.bind((ADDRESS, 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "membench", "app", f"port={port}", "show=false"])
    try:
        deadline = time.monotonic() + 120
        while not _answers(port):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        yield f"http://{ADDRESS}:{port}/"
    finally:
        server.terminate()
        server.wait(timeout=30)


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex((ADDRESS, port)) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_shows_a_step_at_once(browser: Any, app: str, width: int) -> None:
    with Visit(browser, app, width=width) as visit:
        visit.open("")
        visit.page.get_by_text("allocated", exact=True).wait_for(timeout=120_000)
        visit.page.get_by_text("membench predict model=gpt2 device=rtx3060").wait_for()
        assert not visit.too_wide()
        assert not visit.complaints


@pytest.mark.browser
@pytest.mark.timeout(600)
def test_methods_appear_and_a_point_shows_its_program(browser: Any, app: str) -> None:
    with Visit(browser, app) as visit:
        visit.open("")
        page = visit.page
        page.get_by_text("allocated", exact=True).wait_for(timeout=120_000)
        page.get_by_label("Network").fill("alexnet")
        page.keyboard.press("Enter")
        page.get_by_text("predict model=alexnet").wait_for(timeout=120_000)
        page.get_by_label("More options").fill("methods=pytorch,memonger largest=none")
        page.keyboard.press("Enter")
        page.get_by_text("Find what fits").click()
        title = page.get_by_text("in a program and as a command")
        title.wait_for(timeout=300_000)
        shown = title.inner_text()
        for place in (0, 1):
            page.evaluate(_SELECT, place)
            page.wait_for_timeout(1500)
            if title.inner_text() != shown:
                break
        else:
            pytest.fail("no point shows another program")
        assert not visit.complaints


@pytest.mark.browser
@pytest.mark.timeout(600)
def test_a_wrong_word_is_explained(browser: Any, app: str) -> None:
    with Visit(browser, app) as visit:
        visit.open("")
        visit.page.get_by_text("allocated", exact=True).wait_for(timeout=120_000)
        visit.page.get_by_label("Network").fill("gtp2")
        visit.page.keyboard.press("Enter")
        visit.page.get_by_text("'gtp2' is not known").wait_for(timeout=60_000)
        assert not visit.complaints
