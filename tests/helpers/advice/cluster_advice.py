"""Searches on several GPUs whose jobs run in this process, and the bounds on their rows."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from threading import Lock

import pytest

from membench.advice.cluster import jobs as cluster_jobs
from membench.advice.cluster import search as cluster_search
from membench.advice.cluster.advice import ClusterAdvice, RankPlan
from membench.advice.cluster.rank_bounds import least_rank_bytes, least_step_time_s, rank_states_bytes
from membench.advice.cluster.rank_options import RankOptions
from membench.advice.cluster.search import ClusterSearch
from membench.core.step.workload import Workload
from membench.steps.arguments import as_update
from membench.steps.parallel.ranks import ranks_of


class _Here(cluster_jobs.Jobs):
    """Runs jobs in this process."""

    def __init__(self, step: cluster_jobs.RankWorkload, _: int | None) -> None:
        self._step, self._workers, self._here = step, None, Lock()


def advised(of: Workload, options: RankOptions, shown: int | None = None) -> ClusterAdvice:
    """Return the advice on a step under AdamW; every combination that fits is predicted, or as many as are shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_search, "Jobs", _Here)
        return ClusterSearch(of, options, as_update("adamw"), shown).advice(processes=1)


def bounds(found: ClusterAdvice, options: RankOptions, of: Workload) -> Iterator[tuple[RankPlan, int, float]]:
    """Yield each row with the bounds on the memory of its fullest rank and on its time."""
    update = as_update("adamw")
    given = options.cluster, None, update, None, None
    step = cluster_jobs.RankWorkload(of, set(found.classes), found.blocks, *given)
    numbered = cache(lambda variant: cluster_jobs.captured(step, variant).numbers)
    weights = {name: weight.numel() * weight.itemsize for name, weight in of.module.named_parameters()}
    states = cluster_jobs.state_bytes(step)
    for plan in found.plans:
        row = plan.combination
        numbers = numbered(replace(cluster_jobs.Variant.of(row), is_cut=False))
        ranks = ranks_of(
            of.module,
            options.cluster,
            parallel=row.parallel,
            accumulate=row.accumulate,
            reshard_after_forward=row.reshard_after_forward and row.stages == 1,
            reduce_dtype=options.reduce_dtype,
        )
        parts = row.shards * row.division.tensor
        held = rank_states_bytes(weights, states, numbers.reduced, parts) if row.shards > 1 else {}
        yield plan, least_rank_bytes(numbers, ranks, held, 0), least_step_time_s(numbers, ranks)
