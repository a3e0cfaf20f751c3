"""Random modules and their programs' arguments: plain PyTorch's bits at the predicted peak under every strategy."""

from collections import Counter

import pytest

from tests.helpers.networks.random_modules import Case
from tests.helpers.networks.random_runs import TRAINING, difference, failures, found_in, smallest

SEEDS = range(8)
MANY = range(1000, 1400)
FOUND = [
    Case(120, (("region of an encoder", 7, 1),), "eager"),
    Case(131, (), "eager", "wrap", batch_size=1, outputs="twice"),
    Case(154, (), "zero_infinity", inputs="weight"),
    Case(170, (("encoder", 4, 7),), "network_wide", "wrap", batch_size=1),
    Case(1, (("heads of one element", 0, 0), ("heads of one element", 1, 0)), "memonger", batch_size=1),
    Case(2, (("complex product", 0, 0),), "geeps", inputs="twice", room=0.0),
    Case(3, (("sum of three", 0, 0),), "layrub_hybrid", "wrap", inputs="twice", with_gradient=True, in_thread=True),
]
"""Cases that differed once, and those of reports."""


@pytest.mark.parametrize("case", FOUND, ids=lambda case: f"{case.seed}, {case.strategy}")
def test_a_case_that_differed_does_not(case: Case) -> None:
    assert not difference(case)


def test_random_modules_give_the_same_bits_at_the_predicted_peak() -> None:
    found = list(failures(SEEDS, Counter()))
    assert not found, "\n".join(found)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_many_random_modules_do_under_every_strategy() -> None:
    counts: Counter[str] = Counter()
    found = list(failures(MANY, counts))
    assert not found, "\n".join(found)
    assert all(any(name.startswith(f"{strategy}, ") for name in counts) for strategy in TRAINING), counts
    assert counts["compared"] > len(MANY) / 2, counts


def test_a_failure_is_reported_with_the_smallest_case_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_on_complex(case: Case) -> str:
        return "differs" if any("complex" in name for name, _, _ in case.layers) and case.aliases else ""

    monkeypatch.setattr("tests.helpers.networks.random_runs.difference", fails_on_complex)
    layers = (("relu", 0, 0), ("complex sum", 0, 1), ("dropout", 1, 0))
    large = Case(5, layers, "joint", "wrap", 3, "twice", aliases=True, in_thread=True, carrier="slots")
    assert found_in(large) == "differs"
    assert smallest(large) == Case(5, layers[1:2], "eager", "wrap", aliases=True)
