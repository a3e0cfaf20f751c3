"""Pages in a real browser: the site's home, pages of its reference and its results, a paper's report, an advice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mkdocs.commands.build import build
from mkdocs.config import load_config
from torch import nn

import membench
from membench.advice.device.page import page
from tests.helpers.browser import SCHEMES, WIDTHS, Visit, chromium, served
from tests.helpers.pages import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
ADVICE = "advice.html"
PAGES = (
    "index.html",
    "reference/python/functions.html",
    "reference/commands/advise.html",
    "results/validation.html",
    "report/index.html",
    "report/layrub.html",
    ADVICE,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site, with a page of advice in it, on loopback; it is not built where there is no browser."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    (folder / ADVICE).write_text(_page_of_advice())
    with served(folder) as address:
        yield address


def _page_of_advice() -> str:
    """Return the page on a step that does not fit, which has all that such a page can have."""
    with torch.device("meta"):
        module = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())))
        batch = torch.randn(4096, 512), torch.randn(4096, 512)
    advice = membench.advise(module, nn.functional.mse_loss, batch, device="rtx3060", budget="60 MB", optimizer="adamw")
    assert not advice.fits and advice.best and advice.levers
    return page(advice, {"Peak memory and step time": advice.figure()})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("uri", PAGES)
def test_a_page_fits_the_window_and_has_no_error(browser: Any, site: str, uri: str, width: int, scheme: str) -> None:
    with Visit(browser, site, width=width, scheme=scheme) as visit:
        visit.open(uri)
        assert not visit.complaints
        assert not visit.too_wide()
        assert not visit.cut_blocks()


@pytest.mark.parametrize("uri", PAGES)
def test_the_links_of_a_page_lead_somewhere(browser: Any, site: str, uri: str) -> None:
    with Visit(browser, site) as visit:
        visit.open(uri)
        assert not visit.dead_links()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("uri", PAGES)
def test_text_stands_out_from_what_is_behind_it(browser: Any, site: str, uri: str, scheme: str) -> None:
    with Visit(browser, site, scheme=scheme) as visit:
        visit.open(uri)
        assert not visit.faint_texts()


def test_the_browser_complains_of_a_bad_page(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<!doctype html><title>bad</title><script>nothing()</script><p style='width: 600px'>wide</p>"
        "<p style='color: #ccc; background: #fff'>faint</p><a href='no.html'>a</a><a href='bad.html#no'>b</a>"
        "<pre style='overflow: auto; width: 50px'>a long line of code</pre><img src='http://127.0.0.1:9/x.png'>"
    )
    with served(tmp_path) as address, Visit(browser, address, width=WIDTHS[0]) as visit:
        visit.open("bad.html")
        assert any("nothing" in each for each in visit.complaints)
        assert any("another host" in each for each in visit.complaints)
        assert visit.too_wide() and visit.cut_blocks() and visit.faint_texts() == ["faint"]
        assert [each.removeprefix(address) for each in visit.dead_links()] == ["bad.html#no", "no.html"]
