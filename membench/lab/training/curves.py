"""Learning curves: intervals over seeds, permutation tests between two methods, tables, and lines for a terminal.

A training is a list of records, one for each seed; a record's samples are its values after each epoch.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import inf, sqrt
from typing import TYPE_CHECKING

from membench.core.configuration import method_of
from membench.core.record import Outcome, Record, configuration_hash
from membench.core.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


SIGNIFICANCE = 0.05
CONFIDENCE = 1 - SIGNIFICANCE

_SAME = 1e-9
"""Gaps that differ by less are equal: sums of the same numbers in another order."""


@dataclass(frozen=True)
class PermutationTest:
    """An exact permutation test of the gap between two methods' mean curves.

    Attributes:
        gap: absolute difference of the mean curves, averaged over the epochs, in the metric's unit.
        p_value: fraction of all assignments of the runs to the two methods that give at least this gap.
    """

    gap: float
    p_value: float

    @property
    def is_significant(self) -> bool:
        return self.p_value < SIGNIFICANCE


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval, by Student's t; without ends where there is one seed alone."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return the interval of the mean of values that vary as if drawn from one normal distribution."""
        mean, count = statistics.fmean(values), len(values)
        if count == 1:
            return cls(mean, -inf, inf)
        from scipy.special import stdtrit  # takes long, for which a wrong word need not wait

        half = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) * statistics.stdev(values) / sqrt(count)
        return cls(mean, mean - half, mean + half)


def curves(training: Sequence[Record], metric: str) -> "npt.NDArray[np.float64]":
    """Return a metric after each epoch, shaped (seeds, epochs)."""
    import numpy as np  # takes long, for which a wrong word need not wait

    return np.array([record.samples[metric] for record in training])


def epochs_to_accuracy(record: Record, accuracy: float) -> int | None:
    """Return the number of epochs until a run reached a test accuracy (a fraction), or None if it never did."""
    accuracies = enumerate(record.samples["test_accuracy"], start=1)
    return next((epoch for epoch, reached in accuracies if reached >= accuracy), None)


def permutation_test(training: Sequence[Record], reference: Sequence[Record], metric: str) -> PermutationTest:
    """Test whether two methods' curves differ by more than seeds do.

    With four seeds each, the smallest p-value is 1/35; with three it is 1/10, which is never significant.
    """
    import numpy as np

    runs = np.concatenate([curves(training, metric), curves(reference, metric)])
    gaps = [_gap(runs, list(chosen)) for chosen in combinations(range(len(runs)), len(training))]
    found = gaps[0]  # the first combination is the real one
    as_large = sum(gap >= found - _SAME for gap in gaps)
    return PermutationTest(float(found), as_large / len(gaps))


def _gap(runs: "npt.NDArray[np.float64]", chosen: list[int]) -> float:
    others = runs[[run for run in range(len(runs)) if run not in chosen]]
    return float(abs(runs[chosen].mean(axis=0) - others.mean(axis=0)).mean())


def comparison_table(trainings: Sequence[tuple[str, Sequence[Record]]]) -> "pd.DataFrame":
    """Test each strategy's curves against eager's of the same network, data, recipe and seeds.

    Args:
        trainings: by name; those with a failed run or without such a counterpart are left out.
    """
    import pandas as pd

    ended = [(name, runs) for name, runs in trainings if all(run.outcome is Outcome.OK for run in runs)]
    eager = [pair for pair in ended if method_of(pair[1][0].configuration) == "eager"]
    references = {_all_but_strategy(runs): (name, runs) for name, runs in eager}
    rows = []
    for name, training in ended:
        reference_name, reference = references.get(_all_but_strategy(training), (name, training))
        if reference_name == name:
            continue
        for metric in ("loss", "training_accuracy", "test_accuracy"):
            found = permutation_test(training, reference, metric)
            rows.append(
                {
                    "training": name,
                    "reference": reference_name,
                    "metric": metric,
                    "seeds": len(training),
                    "mean": f"{curves(training, metric)[:, -1].mean():.5f}",
                    "reference_mean": f"{curves(reference, metric)[:, -1].mean():.5f}",
                    "gap": f"{found.gap:.5f}",
                    "probability": f"{found.p_value:.4f}",
                    "differs": "yes" if found.is_significant else "no",
                }
            )
    return pd.DataFrame(rows)


def _all_but_strategy(training: Sequence[Record]) -> str:
    return configuration_hash([{**record.configuration, "strategy": None, "budget": None} for record in training])


def curve_table(trainings: Sequence[tuple[str, Sequence[Record]]]) -> "pd.DataFrame":
    """Return a row for each training, seed and epoch, with its configuration and provenance.

    Args:
        trainings: by name; failed runs are left out.
    """
    import pandas as pd

    ended = ((name, run) for name, runs in trainings for run in runs if run.outcome is Outcome.OK)
    return pd.DataFrame([row for name, run in ended for row in _rows(name, run)])


def _rows(name: str, record: Record) -> list[dict[str, object]]:
    configuration, recipe = record.configuration, record.configuration["recipe"]
    provenance, samples = record.provenance, record.samples
    values = (samples[metric] for metric in ("loss", "training_accuracy", "test_accuracy"))
    by_epoch = zip(*values, accumulate(samples["time_s"]), strict=True)
    return [
        {
            "training": name,
            "model": configuration["model"]["name"],
            "data": configuration["data"]["_target_"].rpartition(".")[2],
            "strategy": method_of(configuration),
            **{key: recipe[key] for key in ("batch_size", "learning_rate", "seed")},
            "epoch": epoch,
            "loss": f"{loss:.6g}",
            "training_accuracy": f"{training:.4f}",
            "test_accuracy": f"{test:.4f}",
            "time_s": f"{time_s:.3f}",
            "configuration": record.configuration_hash,
            "device": provenance["device"],
            "torch": provenance["versions"]["torch"],
            "commit": (provenance["commit"] or "")[:12] + ("" if provenance["clean"] else " with changes"),
        }
        for epoch, (loss, training, test, time_s) in enumerate(by_epoch, start=1)
    ]


def describe_run(record: Record) -> str:
    """Describe a run in one line for a terminal."""
    seed = f"  seed {record.configuration['recipe']['seed']}"
    if record.outcome is not Outcome.OK:
        return f"{seed}  {record.outcome.words}: {record.reason}"
    metrics = record.metrics
    return (
        f"{seed}  loss {metrics['loss']:.4f}  training {metrics['training_accuracy']:7.2%}"
        f"  test {metrics['test_accuracy']:7.2%}  {sum(record.samples['time_s']):.1f} s"
    )


def describe_training(training: Sequence[Record], target_accuracy: float) -> str:
    """Describe a training in lines for a terminal: mean and standard deviation over its seeds."""
    ended = [record for record in training if record.outcome is Outcome.OK]
    if not ended:
        return "  no run succeeded"
    accuracies = [record.metrics["test_accuracy"] for record in ended]
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    reached = [epochs_to_accuracy(record, target_accuracy) for record in ended]
    epochs = ", ".join("never" if epoch is None else str(epoch) for epoch in reached)
    budgets = ended[0].configuration.get("inference", {"budgets": ()})["budgets"]
    return "\n".join(
        (
            f"  mean of {len(ended)}  test accuracy {statistics.fmean(accuracies):.2%}, "
            f"standard deviation {100 * deviation:.2f} points",
            f"  epochs to {target_accuracy:.0%}  {epochs}",
            *(_describe_limit(ended, budget) for budget in budgets),
        )
    )


def _describe_limit(training: Sequence[Record], budget: str | int) -> str:
    """Describe the accuracy of the trained networks with and without a memory limit."""
    limited, unlimited, peak_bytes = (
        statistics.fmean(record.metrics[f"inference_{name}:{budget}"] for record in training)
        for name in ("accuracy", "unlimited_accuracy", "peak_bytes")
    )
    return (
        f"  within {budget}  test accuracy {limited:.2%}, {unlimited:.2%} without a limit, "
        f"peak {format_bytes(peak_bytes)}"
    )
