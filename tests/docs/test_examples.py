"""The programs of the README and of docs/examples run as a reader would run them; links and citations hold."""

import ast
import json
import re
import runpy
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from membench.core.units import MIB
from tests.helpers.pages import PAGES, ROOT, anchors_of, code_of, links_of

EXAMPLES = ROOT / "docs" / "examples"


def output_of(example: str, folder: Path) -> str:
    """Run an example as a program, in an empty folder, and return what it prints."""
    with chdir(folder), redirect_stdout(StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    assert not list(folder.iterdir())
    return printed.getvalue()


def sizes_of(output: str, unit: str) -> dict[str, float]:
    """Return the memory that each line states, by the name of its strategy."""
    return {name: float(size) for name, size in re.findall(rf"^(\w+) +([\d.]+) {unit}", output, re.MULTILINE)}


@pytest.mark.slow
def test_the_programs_of_the_readme_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for program in (code for code in code_of("README.md") if code.language == "python"):
        exec(program.text, names)
    compiled, *predicted = capsys.readouterr().out.splitlines()
    peak_bytes, images_per_s = map(float, compiled.split())
    assert peak_bytes <= 120 * MIB
    assert images_per_s > 0
    assert all(weight.grad is not None for weight in names["model"].parameters())
    assert predicted[0] == "ResNet, batch 8, amp_bf16, adamw, predicted for rtx4090"
    assert predicted[1].split()[:2] == ["fits", "yes,"]
    found = names["found"]
    assert 0 < found.allocated_bytes <= found.reserved_bytes < found.used_bytes


def test_a_compiled_model_trains_to_the_same_loss_in_less_memory(tmp_path: Path) -> None:
    output = output_of("compile_your_model.py", tmp_path)
    peaks = sizes_of(output, "MB")
    assert "the same loss, bit for bit" in output
    assert max(peaks["layrub_hybrid"], peaks["memonger"]) < 0.7 * peaks["eager"]
    assert "a budget of 4.0 MB is too small" in output


def test_a_wrapped_module_ends_a_loop_with_the_same_bits_and_resumes_to_them(tmp_path: Path) -> None:
    output = output_of("wrap_your_module.py", tmp_path)
    assert output.startswith("2 kinds of calls, at most ")
    assert "\nthe same weights, bit for bit\nresumed to the same weights, bit for bit" in output


def test_the_program_of_the_page_trains_batches_of_two_sizes() -> None:
    names: dict[str, Any] = {}
    [program] = [code for code in code_of("docs/wrap.md") if code.language == "python"]
    exec(program.text, names)
    calls = names["model"].wrapped_calls
    assert len(calls.steps) == 2 and calls.predicted_peak_bytes <= 20 * MIB and calls.waiting_bytes == 0


@pytest.fixture
def _fresh_accelerate() -> Iterator[None]:
    """Reset the precision that accelerate keeps for the whole process; the Trainer uses it as well."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning:lightning")
@pytest.mark.parametrize(("library", "kinds"), [("lightning", 4), ("transformers", 4), ("accelerate", 2)])
@pytest.mark.usefixtures("_fresh_accelerate")
def test_a_library_trains_a_wrapped_module_to_the_same_bits_and_resumes_to_them(
    library: str, kinds: int, tmp_path: Path
) -> None:
    output = output_of(f"train_with_{library}.py", tmp_path)
    assert output.endswith(
        f"{kinds} kinds of calls\nwrapped: the same weights, bit for bit\nresumed: the same weights, bit for bit\n"
    )


def test_each_row_of_the_table_of_loops_names_a_test() -> None:
    rows = re.findall(r"^\|.*\| (?:`(test_\w+)`|the same) \|$", PAGES["docs/wrap.md"].read_text(), re.MULTILINE)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) >= 17
    assert not [name for name in filter(None, rows) if f"def {name}(" not in tests]


def test_a_written_strategy_keeps_the_gradients_and_saves_memory(tmp_path: Path) -> None:
    output = output_of("write_a_strategy.py", tmp_path)
    peaks = sizes_of(output, "MB")
    assert "the same gradients, bit for bit" in output
    assert peaks["recompute_cheap"] < 0.7 * peaks["eager"]


@pytest.mark.slow
def test_a_simulated_card_refuses_eager_and_ranks_the_methods(tmp_path: Path) -> None:
    output = output_of("simulate_a_card.py", tmp_path)
    rates = dict(re.findall(r"^(\w+) .* ([\d.]+) images/s \(simulated\)$", output, re.MULTILINE))
    assert re.search(r"^eager +the step needs 10\.\d GB and the device has 8\.0 GB$", output, re.MULTILINE)
    assert sizes_of(output, "GB").keys() == {"memonger", "superneurons", "vdnn_all", "layrub_hybrid"}
    assert max(sizes_of(output, "GB").values()) < 8
    assert max(rates, key=lambda name: float(rates[name])) == "memonger"  # recomputing beats the link here


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short_and_a_page_links_to_it(example: str) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) < 80
    links = {link for page in PAGES for link, _ in links_of(page)}
    assert any(link.endswith(f"examples/{example}") for link in links)


@pytest.mark.parametrize("page", PAGES)
def test_anchors_that_a_page_links_to_exist(page: str) -> None:
    for link, anchor in links_of(page):
        target = (PAGES[page].parent / link).resolve() if link else PAGES[page]
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target.relative_to(ROOT).as_posix()), (link, anchor)


def test_the_readme_is_short_and_every_page_can_be_reached_from_it() -> None:
    assert len(PAGES["README.md"].read_text().splitlines()) < 100
    reached, pending = {"README.md"}, ["README.md"]
    while pending:
        page = pending.pop()
        linked = {(PAGES[page].parent / link).resolve() for link, _ in links_of(page) if link}
        found = {path.relative_to(ROOT).as_posix() for path in linked} & PAGES.keys() - reached
        reached |= found
        pending += found
    assert reached == PAGES.keys()


@pytest.mark.parametrize("record", [page for page in PAGES if page.startswith("docs/decisions/")])
def test_a_decision_is_short_and_has_its_three_parts(record: str) -> None:
    text = PAGES[record].read_text()
    assert len(text.splitlines()) <= 25
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]


def test_the_papers_are_cited_alike_in_all_places() -> None:
    entries = (ROOT / "docs" / "papers.bib").read_text().split("@")[1:]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    page = PAGES["docs/papers.md"].read_text()
    assert entries
    for entry, reference in zip(entries, cited, strict=True):
        fields = dict(re.findall(r"(\w+)\s*= \{(.+)\},?$", entry, re.MULTILINE))
        title = re.sub(r"[{}]", "", fields["title"])
        assert title == reference["title"]
        assert f"*{title}*" in page
        assert fields["year"] == str(reference["year"])
        assert fields.get("doi") == reference.get("doi")
        assert fields.get("doi", "") in page


# ---- notebooks --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path: Path, tmp_path: Path) -> None:
    """Each cell runs as in Jupyter, which shows the value of a cell's last line."""
    names: dict[str, Any] = {}
    shown = 0
    with chdir(tmp_path), redirect_stdout(StringIO()):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] != "code":
                continue
            assert not cell["outputs"], "what is shown would grow old; clear it"
            program = ast.parse("".join(cell["source"]))
            last = program.body.pop() if isinstance(program.body[-1], ast.Expr) else None
            exec(compile(program, str(path), "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)
                shown += value is not None and bool(getattr(value, "_repr_html_", value.__repr__)())
    assert shown >= 2
