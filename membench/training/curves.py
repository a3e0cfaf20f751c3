"""What trainings came to: tidy curves, means and spreads over seeds, and whether two systems' curves differ.

A training is a list of records, one for each seed; a record's samples are its values after each epoch.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from membench.core.configuration import method_of
from membench.core.record import Outcome, Record, configuration_hash
from membench.core.units import format_bytes

Curves = npt.NDArray[np.float64]

SIGNIFICANCE = 0.05

_SAME = 1e-9
"""Gaps that differ by less are equal: sums of the same numbers in another order."""


@dataclass(frozen=True)
class Spread:
    """Values of one quantity, one for each seed.

    Attributes:
        deviation: the sample standard deviation; zero for a single value.
    """

    mean: float
    deviation: float


@dataclass(frozen=True)
class Comparison:
    """Whether a system's curve differs from the reference's by more than seeds differ from each other.

    The gap between the mean curves, averaged over the epochs, is set beside the gaps that come out when the same runs are
    dealt out to the two systems in every other way (an exact permutation test).

    Attributes:
        gap: in the metric's own unit.
        probability: how many of all ways give at least this gap, as a fraction.
    """

    gap: float
    probability: float

    @property
    def differs(self) -> bool:
        return self.probability < SIGNIFICANCE


def spread(values: Sequence[float]) -> Spread:
    """Return mean and spread of at least one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation)


def curves(training: Sequence[Record], metric: str) -> Curves:
    """Return a metric after each epoch, a row for each seed."""
    return np.array([record.samples[metric] for record in training])


def epochs_to_accuracy(record: Record, accuracy: float) -> int | None:
    """Return after how many epochs a run first reached a test accuracy (a fraction), or None if it never did."""
    for epoch, reached in enumerate(record.samples["test_accuracy"], start=1):
        if reached >= accuracy:
            return epoch
    return None


def time_to_accuracy_s(record: Record, accuracy: float) -> float | None:
    """Return how long a run trained until it first reached a test accuracy, tests not counted, or None."""
    epochs = epochs_to_accuracy(record, accuracy)
    return None if epochs is None else sum(record.samples["time_s"][:epochs])


def compare(training: Sequence[Record], reference: Sequence[Record], metric: str) -> Comparison:
    """Compare two systems' curves.

    With four seeds each, the smallest probability is 1 in 35; three are too few to find any difference at `SIGNIFICANCE`.
    """
    runs = np.concatenate([curves(training, metric), curves(reference, metric)])
    gaps = [_gap(runs, list(chosen)) for chosen in combinations(range(len(runs)), len(training))]
    found = gaps[0]  # the first combination is the real one
    as_large = sum(gap >= found - _SAME for gap in gaps)
    return Comparison(float(found), as_large / len(gaps))


def _gap(runs: Curves, chosen: list[int]) -> float:
    others = np.delete(runs, chosen, axis=0)
    return float(np.abs(runs[chosen].mean(axis=0) - others.mean(axis=0)).mean())


def comparison_table(trainings: Sequence[tuple[str, Sequence[Record]]]) -> pd.DataFrame:
    """Return how each strategy's curves compare with eager's of the same network, data, recipe and seeds.

    Args:
        trainings: by name; those that did not end well, or have no such counterpart, are left out.
    """
    ended = [(name, runs) for name, runs in trainings if all(run.outcome is Outcome.OK for run in runs)]
    references = {
        _all_but_strategy(runs): (name, runs)
        for name, runs in ended
        if method_of(runs[0].configuration) == "eager"
    }
    rows = []
    for name, training in ended:
        reference_name, reference = references.get(_all_but_strategy(training), (name, training))
        if reference_name == name:
            continue
        for metric in ("loss", "training_accuracy", "test_accuracy"):
            found = compare(training, reference, metric)
            rows.append(
                {
                    "training": name,
                    "reference": reference_name,
                    "metric": metric,
                    "seeds": len(training),
                    "mean": f"{curves(training, metric)[:, -1].mean():.5f}",
                    "reference_mean": f"{curves(reference, metric)[:, -1].mean():.5f}",
                    "gap": f"{found.gap:.5f}",
                    "probability": f"{found.probability:.4f}",
                    "differs": "yes" if found.differs else "no",
                }
            )
    return pd.DataFrame(rows)


def _all_but_strategy(training: Sequence[Record]) -> str:
    return configuration_hash(
        [{**record.configuration, "strategy": None, "budget": None} for record in training]
    )


def curve_table(trainings: Sequence[tuple[str, Sequence[Record]]]) -> pd.DataFrame:
    """Return one row for each training, seed and epoch, with what was run and by which code.

    Args:
        trainings: by name; runs that did not end well have the epochs that they reached.
    """
    rows = [row for name, training in trainings for record in training for row in _rows(name, record)]
    return pd.DataFrame(rows)


def _rows(name: str, record: Record) -> list[dict[str, object]]:
    configuration, recipe = record.configuration, record.configuration["recipe"]
    provenance, samples = record.provenance, record.samples
    if record.outcome is not Outcome.OK:
        return []
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
        for epoch, (loss, training, test, time_s) in enumerate(
            zip(
                samples["loss"],
                samples["training_accuracy"],
                samples["test_accuracy"],
                accumulate(samples["time_s"]),
                strict=True,
            ),
            start=1,
        )
    ]


def describe_run(record: Record) -> str:
    """Return a run as one line for a terminal."""
    seed = f"  seed {record.configuration['recipe']['seed']}"
    if record.outcome is not Outcome.OK:
        return f"{seed}  {record.outcome.words}: {record.reason}"
    metrics = record.metrics
    return (
        f"{seed}  loss {metrics['loss']:.4f}  training {metrics['training_accuracy']:7.2%}"
        f"  test {metrics['test_accuracy']:7.2%}  {sum(record.samples['time_s']):.1f} s"
    )


def describe_training(training: Sequence[Record], target_accuracy: float) -> str:
    """Return mean and spread over a training's seeds as lines for a terminal."""
    ended = [record for record in training if record.outcome is Outcome.OK]
    if not ended:
        return "  no run ended well"
    final = spread([record.metrics["test_accuracy"] for record in ended])
    reached = [epochs_to_accuracy(record, target_accuracy) for record in ended]
    epochs = ", ".join("never" if epoch is None else str(epoch) for epoch in reached)
    budgets = ended[0].configuration.get("inference", {"budgets": ()})["budgets"]
    return "\n".join(
        (
            f"  mean of {len(ended)}  test accuracy {final.mean:.2%}, standard deviation {100 * final.deviation:.2f} points",
            f"  epochs to {target_accuracy:.0%}  {epochs}",
            *(_describe_limit(ended, budget) for budget in budgets),
        )
    )


def _describe_limit(training: Sequence[Record], budget: str | int) -> str:
    """Return what the trained networks answer under a memory limit, beside what they answer without."""
    limited, unlimited, peak_bytes = (
        statistics.fmean(record.metrics[f"inference_{name}:{budget}"] for record in training)
        for name in ("accuracy", "unlimited_accuracy", "peak_bytes")
    )
    return (
        f"  within {budget}  test accuracy {limited:.2%}, {unlimited:.2%} without a limit, "
        f"peak {format_bytes(peak_bytes)}"
    )
