"""Methods of today with random options: weights in host memory, updates deferred, layers in windows, random choices."""

import random

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import STATE_ROLES, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import NO_LIMIT, Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, REPEAT, Problem
from membench.planning.rewrites.rewrite import keep_on_host, update_on_host
from membench.strategies.base import Strategy
from membench.strategies.greedysnake import GreedySnake
from membench.strategies.megatrain import MegaTrain
from membench.strategies.ratel import Ratel
from membench.strategies.superoffload import SuperOffload
from membench.strategies.zero_infinity import ZeroInfinity


class RandomChoices(Strategy):
    """What `joint` emits of random choices about each block, with some updates on the host and some of these deferred.

    Args:
        rng: chooses.
        deferred_share: see `defer_updates`.
    """

    name = "random choices"
    moves_weights = True

    def __init__(self, rng: random.Random, deferred_share: float) -> None:
        self._rng, self._deferred_share = rng, deferred_share

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        problem = Problem(update_on_host(keep_on_host(graph, STATE_ROLES, updated=True)), cost, least_bytes=1)
        choices = [
            self._rng.choice((KEEP, OFFLOAD, RECOMPUTE, REPEAT) if unit.makers else (KEEP, OFFLOAD))
            for unit in problem.units
        ]
        plan = Evaluator(problem).plan(choices, NO_LIMIT)
        return emit(self.name, plan, budget_bytes, deferred_share=self._deferred_share)


def random_method(rng: random.Random) -> Strategy:
    """Return one of the methods, with random options."""
    ahead, bucket_bytes = rng.randint(0, 3), rng.choice([0, 1000, 10**6])
    share = rng.choice([0.0, 0.3, 0.7, 1.0])
    return rng.choice(
        [
            ZeroInfinity(ahead, rng.choice([0, 10**4]), bucket_bytes, deferred_share=share),
            Ratel(ahead, bucket_bytes, share),
            GreedySnake(ahead, bucket_bytes, share),
            MegaTrain(ahead, bucket_bytes, rng.random() < 0.5),
            SuperOffload(rng.random(), bucket_bytes),
            RandomChoices(rng, share),
        ]
    )
