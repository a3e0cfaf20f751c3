"""The home page and the tutorials print what they show, and the site has a page for everything that is exported."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import membench
from docs.site_pages import exports, generated_pages, reports, site_uri
from membench import strategies
from membench.cli.commands import COMMANDS, options_of
from membench.cli.main import main
from membench.core.configuration import ROOT
from tests.helpers.pages import code_of
from tests.helpers.shown import is_shown, renewed, shown

SHOWN = shown()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_planners")
@pytest.mark.parametrize("command", SHOWN, ids=SHOWN)
def test_a_command_prints_what_its_pages_show(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == 0
    output = capsys.readouterr().out
    assert all(is_shown(output, block) for block in SHOWN[command]), output


def test_every_page_of_commands_shows_outputs() -> None:
    assert len(SHOWN) == 7 and sum(map(len, SHOWN.values())) == 9


def test_a_block_is_renewed_by_the_nearest_lines() -> None:
    block = "...\n  used       15.5 GB, 90%: 14.4 GB to 17.2 GB\n  step time  793 ms\n..."
    output = ["net", "  used       15.5 GB, 90%: 14.3 GB to 17.3 GB", "  step time  793 ms", "end"]
    new = renewed(block, output)
    assert not is_shown("\n".join(output), block) and is_shown("\n".join(output), new)
    assert new == "...\n  used       15.5 GB, 90%: 14.3 GB to 17.3 GB\n  step time  793 ms\n...\n"


@pytest.mark.slow
def test_the_program_of_the_tutorial_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for code in code_of("docs/tutorials/first_step.md"):
        if code.language == "python":
            exec(code.text, names)
        else:
            output = capsys.readouterr().out
            assert is_shown(output, code.text), output


@pytest.mark.parametrize("package", [membench, strategies], ids=["membench", "strategies"])
def test_the_reference_has_everything_that_a_package_exports(package: Any) -> None:
    reference = "".join(page.text for page in generated_pages() if page.uri.startswith("reference/python/"))
    entries = set(re.findall(rf"^::: {package.__name__}\.(\w+)$", reference, re.MULTILINE))
    assert entries == set(package.__all__) - {"__version__"} == set(exports(package.__name__))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_a_command_has_its_options_and_its_help(command: str) -> None:
    [page] = [page for page in generated_pages() if page.uri == f"reference/commands/{command}.md"]
    assert page.text.startswith(f"# membench {command}\n\n")
    if COMMANDS[command]:
        assert all(f"| `{option}` |" in page.text for option in options_of(command))


@pytest.mark.slow
def test_a_papers_part_of_the_scoreboard_is_on_one_page_with_its_figures_and_report() -> None:
    pages = {page.uri: page.text for page in generated_pages()}
    assert "### What deviates" not in pages["papers/scoreboard.md"]
    names = {name.removesuffix(".html") for name in reports()} - {"index"}
    assert len(names) >= 6
    for name in names:
        assert "## What deviates" in pages[f"papers/{name}.md"]
        assert f"](../paper_figs/{name}/README.md)" in pages[f"papers/{name}.md"]
        has_figures = any((ROOT / "paper_figs" / name).glob("figure*.png"))
        assert ("](figure" in pages[f"papers/{name}_pictures.md"]) == has_figures
        assert f"](../report/{name}.html)" in pages[f"papers/{name}.md"]


def test_a_path_of_the_repository_leads_to_its_page() -> None:
    assert site_uri("results/validation/README.md") == "results/validation.md"
    assert site_uri("docs/decisions") == "decisions/index.md"
    assert site_uri("docs/examples/write_a_strategy.py") == "examples/write_a_strategy.md"
    assert site_uri("docs/running.md") == "running.md"
