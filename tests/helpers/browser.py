"""Headless Chromium for tests of pages: what a reader's browser complains of, and how wide a page is."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urldefrag

import pytest

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",  # which root, as in a container, cannot have
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = (390, 768, 1440)
"""Pixels: a phone, a tablet, a screen."""
SCHEMES = ("light", "dark")

_TOO_WIDE = """
() => [...document.querySelectorAll("body *")].filter(element => {
    const box = element.getBoundingClientRect();
    if (box.width === 0 || box.right <= innerWidth + 1) return false;
    for (let around = element.parentElement; around; around = around.parentElement)
        if (getComputedStyle(around).overflowX !== "visible") return false;
    return true;
}).map(element => `${element.tagName}.${element.className}`)
"""
_CUT_BLOCKS = """
() => [...document.querySelectorAll("pre, pre > code")]
    .filter(element => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
    .map(element => element.textContent.slice(0, 60))
"""

_FAINT_TEXTS = """
() => {
    const read = color => {
        const [red, green, blue, alpha = 1] = color.match(/[\\d.]+/g).map(Number);
        return {channels: [red, green, blue], alpha};
    };
    const over = (front, back) => front.channels.map((each, i) => each * front.alpha + back[i] * (1 - front.alpha));
    const linear = value => value <= 10.31 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
    const weights = [0.2126, 0.7152, 0.0722];
    const luminance = channels => channels.reduce((sum, each, i) => sum + weights[i] * linear(each), 0);
    const behind = element => {
        if (!element) return [255, 255, 255];
        const color = read(getComputedStyle(element).backgroundColor);
        return color.alpha === 1 ? color.channels : over(color, behind(element.parentElement));
    };
    const isFaint = element => {
        const back = behind(element), front = over(read(getComputedStyle(element).color), back);
        const [low, high] = [luminance(back), luminance(front)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05) < 3;
    };
    const hasText = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    return [...document.querySelectorAll("body *")]
        .filter(each => each.checkVisibility({opacityProperty: true, visibilityProperty: true}) && hasText(each))
        .filter(isFaint).map(each => each.textContent.trim().slice(0, 60));
}
"""
"""Texts whose contrast is below 3:1, what WCAG 2.2 asks of large text."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Start headless Chromium; skip the test, with the reason, where it cannot be started."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'membench[browser]': no playwright")
    executable = next(filter(None, map(shutil.which, EXECUTABLES)), None)
    if executable is None:
        pytest.skip(f"there is no {', '.join(EXECUTABLES)}; .ci/install-chromium installs Debian's")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; yield the address, which ends with a slash."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base's name)
        """Print nothing."""


class Visit:
    """A page in a window, and what the browser complains of.

    Args:
        home: begins the addresses that the page may ask for.
    """

    def __init__(self, browser: Any, home: str, *, width: int = WIDTHS[-1], scheme: str = SCHEMES[0]) -> None:
        self._context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self._context.new_page()
        self.width, self._home = width, home
        self.complaints: list[str] = []
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._note_request)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def _note_message(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((self._home, self._home.replace("http", "ws", 1), "data:", "blob:")):
            self.complaints.append(f"asks another host: {request.url}")

    def open(self, uri: str) -> None:
        self.page.goto(self._home + uri, wait_until="networkidle")

    def too_wide(self) -> list[str]:
        """Return what reaches beyond the window and cannot be scrolled by itself."""
        found: list[str] = self.page.evaluate(_TOO_WIDE)
        return found + (["the page"] if self.page.evaluate("document.documentElement.scrollWidth") > self.width else [])

    def cut_blocks(self) -> list[str]:
        """Return the beginnings of blocks of code whose lines are longer than they show."""
        found: list[str] = self.page.evaluate(_CUT_BLOCKS)
        return found

    def faint_texts(self) -> list[str]:
        """Return the beginnings of texts that hardly stand out from what is behind them."""
        found: list[str] = self.page.evaluate(_FAINT_TEXTS)
        return found

    def dead_links(self) -> list[str]:
        """Return the links and pictures within the site that lead nowhere."""
        page = self.page
        targets = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        targets += page.eval_on_selector_all("img[src]", "pictures => pictures.map(picture => picture.src)")
        inside = sorted({target for target in targets if target.startswith(self._home)})
        return [target for target in inside if not self._leads_somewhere(target)]

    def _leads_somewhere(self, target: str) -> bool:
        address, anchor = urldefrag(target)
        answer = self._context.request.get(address)
        if not answer.ok or not anchor or not address.endswith(".html"):
            return bool(answer.ok)
        text = answer.text()
        return f'id="{anchor}"' in text or f"id={anchor}" in text
