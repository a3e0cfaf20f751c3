"""Stand-ins for what a worker does; worker processes import them by name."""

import os
import sys
import time

from membench.record import Outcome, Record, Source, configuration_hash
from membench.suite.runner import Job


def record_of(configuration: dict, outcome: Outcome = Outcome.OK, **metrics: float) -> Record:
    reason = "" if outcome is Outcome.OK else "for the test"
    return Record(
        configuration,
        configuration_hash(configuration),
        Source.SIMULATED,
        outcome,
        reason,
        {"batch": 1.0, **metrics},
    )


def answer(job: Job) -> list[Record]:
    """Finish in an order that has nothing to do with the order of the jobs."""
    time.sleep(0.02 * (len(job[0]["model"]["name"]) % 3))
    return [record_of(cell, metric=float(len(cell["model"]["name"]))) for cell in job]


def raise_on_bad(job: Job) -> list[Record]:
    if job[0]["model"]["name"] == "bad":
        raise RuntimeError("no such luck")
    return answer(job)


def die_on_bad(job: Job) -> list[Record]:
    if job[0]["model"]["name"] == "bad":
        sys.stdout.flush()
        os._exit(3)
    return answer(job)
