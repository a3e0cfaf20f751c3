"""What the README's first screen shows is what the results, the configurations and the picture are."""

import csv
import re
from statistics import median

from membench.core import configuration
from tests.helpers.pages import PAGES, ROOT, commands_of

README = PAGES["README.md"].read_text()
QUANTITIES = {"step time": {"step_time_s"}, "memory": {"allocated_bytes", "reserved_bytes", "used_bytes"}}


def test_the_first_two_commands_reproduce_a_paper_and_run_the_tests() -> None:
    assert commands_of("README.md")[:2] == ["make reproduce-layrub", "make test"]


def test_the_picture_exists_and_precedes_the_commands() -> None:
    picture = re.search(r'src="([^"]+)" alt="[^"]+"', README)
    assert picture is not None and (ROOT / picture[1]).exists()
    assert picture.start() < README.index("make reproduce-layrub")


def test_the_errors_are_those_of_the_validation() -> None:
    with (ROOT / "results" / "validation" / "summary.csv").open() as file:
        judged = [row for row in csv.DictReader(file) if row["part"] == "judged" and row["median"]]
    for title, quantities in QUANTITIES.items():
        rows = [row for row in judged if row["quantity"] in quantities]
        errors = [float(row["median"]) for row in rows]
        assert (
            f"- {title}: {sum(int(row['rows']) for row in rows):,} measurements in "
            f"{len({row['dataset'] for row in rows})} data sets; {min(errors):.1%} in the best of them, "
            f"{median(errors):.1%} in the middle, {max(errors):.1%} in the worst\n".replace("%", " %")
        ) in README


def test_the_methods_are_the_strategies_of_the_configurations() -> None:
    strategies = configuration.names("strategy")
    table = re.findall(r"^\| (`.+?) \|", PAGES["docs/methods.md"].read_text(), re.MULTILINE)[1:]
    assert sorted(name for cell in table for name in re.findall(r"`(\w+)`", cell)) == sorted(strategies)
    assert f"[{len(strategies)} strategies](docs/methods.md)" in README


def test_the_papers_are_those_of_the_experiments() -> None:
    papers = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/paper.yaml"))
    assert papers == sorted(re.findall(r"`(?:make reproduce)?-(\w+)`", README))
    assert len(papers) == 5 and "Five papers are reproduced" in README
