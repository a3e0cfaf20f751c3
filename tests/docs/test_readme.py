"""What the README's first screen shows is what the results, the configurations and the picture are."""

import re

import pytest

from membench.core import configuration
from membench.core.tables import read_csv
from membench.lab.cli.validate import RESULTS
from membench.lab.validation.distribution import Distribution
from tests.helpers.pages import PAGES, ROOT, commands_of

README = PAGES["README.md"].read_text()
QUANTITIES = {"step time": {"step_time_s"}, "memory": {"allocated_bytes", "reserved_bytes", "used_bytes"}}


def test_the_first_two_commands_reproduce_a_paper_and_run_the_tests() -> None:
    assert commands_of("README.md")[:2] == ["make reproduce-layrub", "make test"]


def test_the_picture_exists_and_precedes_the_commands() -> None:
    picture = re.search(r'src="([^"]+)" alt="[^"]+"', README)
    assert picture is not None and (ROOT / picture[1]).exists()
    assert picture.start() < README.index("make reproduce-layrub")


def of_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.1f} % ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


@pytest.mark.parametrize("title", QUANTITIES)
def test_the_errors_and_their_intervals_are_those_of_the_validation(title: str) -> None:
    page = (RESULTS / "README.md").read_text()
    judged = [
        row
        for row in read_csv(RESULTS / "summary.csv")
        if row["part"] == "judged" and row["quantity"] in QUANTITIES[title] and row["median"]
    ]
    errors = {float(row["median"]): (float(row["median_low"]), float(row["median_high"])) for row in judged}
    middle = Distribution.of(float(row["median"]) for row in judged)
    assert middle and middle.median_interval
    best, worst = min(errors), max(errors)
    inside = dict(zip(QUANTITIES, re.findall(r"([0-9.]+ %) of [0-9,]+ rows with a", page), strict=True))
    assert (
        f"- {title}: {sum(int(row['rows']) for row in judged):,} measurements in "
        f"{len({row['dataset'] for row in judged})} data sets; {of_interval(best, errors[best])} in the best of them, "
        f"{of_interval(middle.median, middle.median_interval)} in the middle, {of_interval(worst, errors[worst])} in "
        f"the worst; {inside[title]} lie inside\n"
    ) in README


def test_the_methods_are_the_strategies_of_the_configurations() -> None:
    strategies = configuration.names("strategy")
    table = re.findall(r"^\| (`.+?) \|", PAGES["docs/methods.md"].read_text(), re.MULTILINE)[1:]
    assert sorted(name for cell in table for name in re.findall(r"`(\w+)`", cell)) == sorted(strategies)
    assert f"[{len(strategies)} strategies](docs/methods.md)" in README


def test_the_papers_are_those_of_the_experiments() -> None:
    papers = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/paper.yaml"))
    assert papers == sorted(re.findall(r"`(?:make reproduce)?-(\w+)`", README))
    assert len(papers) == 6 and "Five papers are reproduced" in README  # offloading: statements of several
