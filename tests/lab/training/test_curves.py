import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from membench.core.record import Outcome, Record
from membench.core.units import MIB
from membench.lab.training.curves import (
    Interval,
    comparison_table,
    curve_table,
    describe_run,
    describe_training,
    epochs_to_accuracy,
    permutation_test,
)
from tests.helpers.lab.trainings import PROVENANCE, run


def test_epochs_to_an_accuracy() -> None:
    record = run([0.2, 0.97, 0.5, 0.99])
    assert epochs_to_accuracy(record, 0.97) == 2
    assert epochs_to_accuracy(record, 0.98) == 4
    assert epochs_to_accuracy(record, 1.0) is None


def test_a_curve_apart_from_all_seeds_differs() -> None:
    reference = [run([0.5, 0.9 + seed / 100], seed) for seed in range(5)]
    worse = [run([0.3, 0.6 + seed / 100], seed) for seed in range(5)]
    found = permutation_test(worse, reference, "test_accuracy")
    assert found.gap == pytest.approx(0.25)
    # the real way, and the two systems swapped
    assert found.p_value == pytest.approx(2 / math.comb(10, 5))
    assert found.is_significant


def test_a_system_does_not_differ_from_itself() -> None:
    runs = [run([0.5, 0.9 + seed / 100], seed) for seed in range(4)]
    found = permutation_test(runs, runs, "test_accuracy")
    assert found.gap == 0
    assert found.p_value == 1
    assert not found.is_significant


def test_three_seeds_are_too_few_to_find_a_difference() -> None:
    found = permutation_test([run([0.1])] * 3, [run([0.9])] * 3, "test_accuracy")
    assert found.p_value == pytest.approx(0.1)
    assert not found.is_significant


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=9), st.integers(-100, 100))
def test_the_interval_moves_with_its_values_and_surrounds_their_mean(values: list[int], shift: int) -> None:
    found, moved = Interval.of(values), Interval.of([value + shift for value in values])
    assert found.low <= found.mean + 1e-9 and found.mean <= found.high + 1e-9
    assert (moved.low - found.low, moved.high - found.high) == (pytest.approx(shift, abs=1e-6),) * 2
    if min(values) != max(values):
        expected = ttest_1samp(values, 0).confidence_interval(0.95)
        assert [found.low, found.high] == pytest.approx([expected.low, expected.high], abs=1e-6)


def test_one_seed_has_no_interval() -> None:
    assert Interval.of([0.9]) == Interval(0.9, -math.inf, math.inf)


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_the_comparison_is_symmetric(accuracies: list[float]) -> None:
    runs = [run([accuracy]) for accuracy in accuracies]
    one, other = (
        permutation_test(runs[:4], runs[4:], "test_accuracy"),
        permutation_test(runs[4:], runs[:4], "test_accuracy"),
    )
    assert one.gap == pytest.approx(other.gap)
    assert one.p_value == pytest.approx(other.p_value)


def test_seeds_alone_are_called_different_as_rarely_as_promised() -> None:
    random = np.random.default_rng(0)
    found = [
        permutation_test([run([a]) for a in values[:4]], [run([a]) for a in values[4:]], "test_accuracy").is_significant
        for values in random.normal(0.9, 0.02, (200, 8)).tolist()
    ]
    assert sum(found) < 0.1 * 200


def test_the_table_has_a_row_for_each_epoch_and_seed_with_its_provenance() -> None:
    dirty = replace(run([0.4, 0.5], seed=1), provenance=PROVENANCE | {"clean": False})
    failed = replace(run([0.1], seed=2), outcome=Outcome.FAILED, reason="no luck")
    table = curve_table([("name", [run([0.2, 0.3]), dirty, failed])])
    assert table[["seed", "epoch", "test_accuracy", "time_s"]].to_numpy().tolist() == [
        [0, 1, "0.2000", "2.000"],
        [0, 2, "0.3000", "4.000"],
        [1, 1, "0.4000", "2.000"],
        [1, 2, "0.5000", "4.000"],
    ]
    assert set(table["commit"]) == {"0123456789ab", "0123456789ab with changes"}
    assert set(table["strategy"]) == {"eager"}


def test_lines_for_a_terminal() -> None:
    good, failed = (run([0.5, 0.98]), replace(run([0.1], seed=2), outcome=Outcome.OUT_OF_MEMORY, reason="too big"))
    assert describe_run(good) == "  seed 0  loss 0.5000  training  50.00%  test  98.00%  4.0 s"
    assert describe_run(failed) == "  seed 2  out of memory: too big"
    text = describe_training([good, run([0.5, 0.6], 1), failed], 0.97)
    assert "mean of 2  test accuracy 79.00%, standard deviation 26.87 points" in text
    assert "epochs to 97%  2, never" in text
    assert describe_training([failed], 0.97) == "  no run succeeded"


def test_lines_for_a_terminal_describe_inference_within_limits() -> None:
    def limited(accuracy: float, seed: int) -> Record:
        plain = run([0.5], seed)
        found = {"accuracy": accuracy, "unlimited_accuracy": 0.5, "peak_bytes": 4 * MIB}
        return replace(
            plain,
            configuration=plain.configuration | {"inference": {"strategy": "mmcnn", "budgets": ["5 MB"]}},
            metrics=plain.metrics | {f"inference_{name}:5 MB": value for name, value in found.items()},
        )

    text = describe_training([limited(0.4, 0), limited(0.6, 1)], 0.97)
    assert text.splitlines()[-1] == "  within 5 MB  test accuracy 50.00%, 50.00% without a limit, peak 4.0 MB"


def test_strategies_are_compared_with_eager_of_the_same_recipe() -> None:
    def named(strategy: str, batch_size: int, accuracies: list[float]) -> list[Record]:
        runs = [run([accuracy], seed) for seed, accuracy in enumerate(accuracies)]
        recipe = {"batch_size": batch_size, "learning_rate": 0.05}
        return [
            replace(
                found,
                configuration=found.configuration
                | {"strategy": {"_target_": f"membench.strategies.{strategy}"}, "recipe": recipe | {"seed": seed}},
            )
            for seed, found in enumerate(runs)
        ]

    reference = [0.90, 0.91, 0.92, 0.93]
    trainings = [
        ("plain", named("eager.Eager", 64, reference)),
        ("exact", named("layrub.LayrubHybrid", 64, reference)),
        ("rounded", named("epmc.Epmc", 64, [0.5, 0.51, 0.52, 0.53])),
        ("alone", named("epmc.Epmc", 128, reference)),
    ]
    table = comparison_table(trainings).set_index(["training", "metric"])
    assert set(table["reference"]) == {"plain"}
    assert {name for name, _ in table.index} == {"exact", "rounded"}
    assert table.loc[("exact", "test_accuracy"), ["gap", "probability", "differs"]].tolist() == [
        "0.00000",
        "1.0000",
        "no",
    ]
    assert table.loc[("rounded", "test_accuracy"), ["gap", "differs"]].tolist() == ["0.40000", "yes"]
    assert table.loc[("rounded", "loss"), "differs"] == "no"
