"""The report: each number is on its paper's page, counts are the scoreboard's, nothing is from outside."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest
from markupsafe import escape

from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.lab.papers.pages.pages import write_report
from membench.lab.papers.pages.paper_page import Sources, data_url, papers_with_results, read_page

SOURCES = Sources(ROOT / "results", ROOT / "paper_figs", ROOT / "experiments")
PAPERS = papers_with_results(SOURCES)


class _Reader(HTMLParser):
    """Collects tags and the addresses that a browser would fetch; checks that tags are closed in order."""

    VOID = frozenset({"link", "meta", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "srcset", "data")]
        if tag == "link" and not (dict(attrs).get("href") or "").startswith("data:"):
            self.fetched.append("link")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    written = write_report(PAPERS, SOURCES, tmp_path_factory.mktemp("report"))
    return {path.stem: path.read_text() for path in written}


@pytest.mark.slow
def test_pages_are_self_contained(pages: dict[str, str]) -> None:
    assert set(pages) == {"index", *PAPERS}
    for text in pages.values():
        reader = _Reader()
        reader.feed(text)
        assert not reader.open
        assert "script" not in reader.tags
        assert all(url.startswith("data:image/png;base64,") for url in reader.fetched)
        assert not re.findall(r"@import|url\(", text)
        assert 'name="viewport"' in text


def _luminance(color: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.2, definitions)."""
    channels = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_stands_out_from_what_it_stands_on(pages: dict[str, str]) -> None:
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", text)) for text in pages["index"].split(":root")[1:]]
    assert len(schemes) == 2
    for colors in schemes:
        grounds = [_luminance(colors[name]) for name in ("page", "panel")]
        for name in colors.keys() - {"page", "panel", "line"}:
            for ground in grounds:
                low, high = sorted((ground, _luminance(colors[name])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, name  # WCAG 2.2, 1.4.3


def test_paper_is_white_and_wide(pages: dict[str, str]) -> None:
    queries = re.findall(r"@media ([^{]*) {", pages["index"])
    assert [query.split()[0] for query in queries] == ["screen", "print", "screen"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_stated_number_is_on_the_page_with_its_verdict(paper: str, pages: dict[str, str]) -> None:
    board = pd.read_csv(SOURCES.results / paper / "scoreboard.csv", keep_default_na=False)
    page = read_page(paper, SOURCES)
    tables = [table for each in page.sections for table in (each.judged, each.shown, each.inputs)]
    numbers = [number for table in tables for number in table.numbers]
    stated = [number for number in numbers if number.verdict is not None]
    assert len(stated) == len(pd.read_csv(SOURCES.experiments / paper / "reference.csv"))
    verdicts = [str(n.verdict) for n in stated if not n.entry["reason"].startswith("not in the results yet")]
    assert not Counter(verdicts) - Counter(board["verdict"])
    assert len(verdicts) > 0.9 * len(board)
    assert pages[paper].count("<tr>") >= len(numbers)
    for section in page.sections:
        assert f'id="{section.name}"' in pages[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_glance_is_the_scoreboards(paper: str, pages: dict[str, str]) -> None:
    total = read_page(paper, SOURCES).numbers.predicted
    headline = f"{total.agree} of {total.judged} predicted numbers reproduced"
    assert headline in (SOURCES.results / paper / "summary.md").read_text()
    assert headline in pages[paper]
    assert headline in pages["index"]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_opens_with_the_picture_and_its_counts_in_words(paper: str, pages: dict[str, str]) -> None:
    board = pd.read_csv(SOURCES.results / paper / "scoreboard.csv", dtype=str, keep_default_na=False)
    board = board[~board["verdict"].isin(["input", "in_kind", "not_run"])]
    board["agrees"] = board["verdict"].isin(["reproduced", "out_of_memory_as_in_paper"])
    parts = {name: board[board[name] == "true"] for name in ("fitted", "held_out")}
    predicted = board.drop([*parts["fitted"].index, *parts["held_out"].index])
    verdicts = predicted["verdict"].value_counts()
    counts = (
        f"of {len(predicted)} predicted numbers {predicted['agrees'].sum()} agree, "
        f"{verdicts.get('better', 0)} are better and {verdicts.get('worse', 0)} worse"
    )
    for name, rows in parts.items():
        if len(rows):
            counts += f"; {rows['agrees'].sum()} of {len(rows)} {name.replace('_', ' ')} agree"
    for page in ("index", paper):
        url, alternative = re.findall(r'<figure class="overview"><img src="([^"]*)" alt="([^"]*)"', pages[page])[0]
        assert counts in alternative
        folder = SOURCES.figures if page == "index" else SOURCES.figures / paper
        assert url == data_url(folder / "overview.png") != ""
        before = pages[page].partition("<img")[0].partition("<body>")[2]
        assert not re.findall("<section|<table|<ul|<ol|<details", before)


@pytest.mark.parametrize("paper", PAPERS)
def test_remarks_are_folded_beside_the_rows_that_they_explain(paper: str, pages: dict[str, str]) -> None:
    page = read_page(paper, SOURCES)
    tables = [table for each in page.sections for table in (each.judged, each.shown, each.inputs)]
    explained = [(number, table) for table in tables for number in table.numbers if number.reason.explanations]
    rows = re.findall(r"<tr>.*?</tr>", pages[paper], re.DOTALL)
    unfolded = re.sub(r'<details class="why">.*?</details>|<caption>.*?</caption>', "", pages[paper], flags=re.DOTALL)
    for number, table in explained:
        for text in map(str, map(escape, number.reason.explanations)):
            assert len(text) < 40 or text not in unfolded
            assert table.common_explanations or any(text in row for row in rows), text
    before = pages[paper][: pages[paper].index("<section")]
    assert "<ol" not in before
    assert len(re.sub(r"<style>.*</style>|<details>.*?</details>|<[^>]*>", "", before, flags=re.DOTALL)) < 2_000


def test_an_explanation_names_its_kind_and_its_choice(tmp_path: Path) -> None:
    copytree(SOURCES.experiments / "vdnn", tmp_path / "experiments" / "vdnn")
    copytree(SOURCES.results / "vdnn", tmp_path / "results" / "vdnn")
    sentence = "a sentence that is made up for this test and long enough to be folded"
    choices = {"choices": [{"name": "made up", "where": {"model": "AlexNet"}, "text": sentence}]}
    (tmp_path / "experiments" / "vdnn" / "choices.yaml").write_text(json.dumps(choices))
    path = tmp_path / "results" / "vdnn" / "scoreboard.csv"
    board = pd.read_csv(path, dtype=str, keep_default_na=False)
    row = board.index[(board["model"] == "AlexNet") & (board["verdict"] == "worse")][0]
    board["choice"] = ""
    board.loc[row, "choice"] = "made up"
    board.to_csv(path, index=False)
    sources = Sources(tmp_path / "results", SOURCES.figures, tmp_path / "experiments")
    _, page = write_report(["vdnn"], sources, tmp_path / "report")
    rows = re.findall(r"<tr>.*?</tr>", page.read_text(), re.DOTALL)
    (folded,) = [each for each in rows if sentence in each]
    assert f"<p><b>Choice: made up.</b> {sentence}</p>" in folded
    assert "(on a choice)" in folded


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_is_inlined(paper: str, pages: dict[str, str]) -> None:
    drawn = len(list((SOURCES.figures / paper).glob("*.png")))
    assert pages[paper].count("data:image/png;base64,") == drawn > 0


@pytest.mark.parametrize("paper", PAPERS)
def test_tables_have_distinct_rows_and_no_empty_columns(paper: str) -> None:
    sections = read_page(paper, SOURCES).sections
    for table in (table for each in sections for table in (each.judged, each.shown, each.inputs)):
        shown = {tuple(number.columns[name] for name in table.columns) for number in table.numbers}
        assert len(shown) == len({tuple(number.columns.values()) for number in table.numbers})
        for name in table.values:
            assert any(number.values[name] for number in table.numbers)


def test_measured_numbers_name_their_device(tmp_path: Path) -> None:
    copytree(SOURCES.results, tmp_path / "results")
    path = tmp_path / "results" / "vdnn" / "scoreboard.csv"
    board = pd.read_csv(path, dtype=str, keep_default_na=False)
    first = board.index[board["simulated_value"] != ""][0]
    board.loc[first, "measured_value"] = "3"
    board.to_csv(path, index=False)
    folder = tmp_path / "results" / "measured" / "some_gpu"
    folder.mkdir(parents=True)
    columns = ["item", "model", "batch_size", "system", "metric", "measured_value"]
    board.loc[[first], columns].to_csv(folder / "vdnn.csv", index=False)
    sources = Sources(tmp_path / "results", SOURCES.figures, SOURCES.experiments)
    simulated, measured = read_page("vdnn", sources).origins
    assert simulated.device.startswith("simulated: ")
    assert simulated.commit == ""  # there is no commit outside a repository
    assert (measured.device, measured.count) == ("measured: some_gpu", 1)
    written = write_report(["vdnn"], sources, tmp_path / "report")
    assert "results/measured/some_gpu/" in written[0].read_text()


def test_numbers_that_results_do_not_have_yet_are_not_run(tmp_path: Path) -> None:
    copytree(SOURCES.results / "vdnn", tmp_path / "vdnn")
    sources = Sources(tmp_path, SOURCES.figures, SOURCES.experiments)
    before = read_page("vdnn", sources).numbers.predicted
    board = tmp_path / "vdnn" / "scoreboard.csv"
    lines = board.read_text().splitlines()
    gone = next(line for line in lines if ",reproduced," in line)
    board.write_text("\n".join(line for line in lines if line != gone) + "\n")
    after = read_page("vdnn", sources).numbers.predicted
    assert after.not_run == before.not_run + 1
    assert after.reproduced == before.reproduced - 1
    _, page = write_report(["vdnn"], sources, tmp_path / "report")
    assert "not in the results yet: make reproduce-vdnn" in page.read_text()


def test_papers_without_results_are_named(tmp_path: Path) -> None:
    copytree(SOURCES.results / "vdnn", tmp_path / "vdnn")
    sources = Sources(tmp_path, SOURCES.figures, SOURCES.experiments)
    with pytest.raises(MembenchError, match="no results of 'layrub'"):
        read_page("layrub", sources)
    index, *_ = write_report(["vdnn"], sources, tmp_path / "report")
    assert "make reproduce-layrub" in index.read_text()


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """A stranger's paper, whose folder, title and rows try to be scripts."""
    name, hostile = "javascript:alert(1)", "\"'><script>alert(1)</script>"
    copytree(SOURCES.experiments / "vdnn", tmp_path / "experiments" / name)
    copytree(SOURCES.results / "vdnn", tmp_path / "results" / name)
    paper = tmp_path / "experiments" / name / "paper.yaml"
    paper.write_text(re.sub(r"^title: .*$", f"title: {json.dumps(hostile)}", paper.read_text(), flags=re.MULTILINE))
    for path in (tmp_path / "experiments" / name / "reference.csv", tmp_path / "results" / name / "scoreboard.csv"):
        path.write_text(path.read_text().replace("AlexNet", '"""\'><script>alert(1)</script>"'))
    sources = Sources(tmp_path / "results", SOURCES.figures, tmp_path / "experiments")
    for path in write_report([name], sources, tmp_path / "report"):
        reader = _Reader()
        reader.feed(path.read_text())
        assert "script" not in reader.tags and not reader.open
        assert path.parent == tmp_path / "report"
    [_, *addresses] = re.findall(r'href="([^"]*)"', (tmp_path / "report" / "index.html").read_text())  # behind the icon
    assert addresses == ["./javascript%3Aalert%281%29.html"]
