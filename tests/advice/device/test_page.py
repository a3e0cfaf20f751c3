"""The page of an advice: well-formed, self-contained, in both colour schemes, with frontier and memory."""

import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import membench
from membench.advice.device.page import page, pictures
from membench.core.units import MIB

pytestmark = pytest.mark.usefixtures("kept_planners")
VOID = {"meta", "img", "br", "link", "hr", "input"}


class _Page(HTMLParser):
    """The tags of a page, and the addresses that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag


@pytest.fixture(scope="module")
def text(kept_planners: None) -> str:
    with torch.device("meta"):
        layers = [layer for _ in range(4) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        batch = torch.randn(16, 16, 32, 32), torch.randint(10, (16,))
    advice = membench.advise(
        module, nn.CrossEntropyLoss(), batch, device="rtx3090", optimizer="adamw", budget=6 * MIB,
        methods=["pytorch", "eager", "vdnn_all", "layrub_hybrid"], largest="none", processes=1,
    )  # fmt: skip
    assert not advice.fits and advice.shown is not None
    return page(advice, pictures(advice, advice.shown, advice.shown.compile("simulated", device="rtx3090")))


@pytest.mark.slow
def test_it_is_well_formed_and_needs_no_other_file(text: str) -> None:
    parsed = _Page(text)
    assert not parsed.open
    loaded = [
        value
        for _, attributes in parsed.attributes
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "data", "action")
    ]
    assert loaded and all((value or "").startswith("data:") for value in loaded)
    assert not re.search(r"@import|url\(|<script", text)


def test_it_fits_phones_and_both_colour_schemes(text: str) -> None:
    metas = {each.get("name"): each.get("content") for tag, each in _Page(text).attributes if tag == "meta"}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"
    assert "prefers-color-scheme: dark" in text


def test_it_has_the_answer_the_table_the_frontier_and_memory_over_time(text: str) -> None:
    assert "Plain PyTorch does not fit." in text and "step = membench.compile(" in text
    pictures = [each["alt"] or "" for tag, each in _Page(text).attributes if tag == "img"]
    assert pictures[0].startswith("Peak memory and step time of plain PyTorch and of each method")
    assert pictures[1].startswith("Memory and streams over one step of")
    assert text.count("<tr>") >= 3
    assert ">step time</th>" in text and ">gap</th>" not in text  # a column without a value is left out


def test_where_nothing_fits_it_has_no_pictures() -> None:
    with torch.device("meta"):
        step = nn.Linear(64, 64), nn.MSELoss(), (torch.randn(64, 64), torch.randn(64, 64))
    advice = membench.advise(*step, device="rtx3090", budget=90_000, methods=["eager"], largest="none", processes=1)
    assert advice.shown is None
    assert "No method fits." in page(advice, {})
