"""RankStep: a captured step as one of several GPUs runs it, planned, simulated and predicted; a single GPU is a rank of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from membench.core.efficiency import Efficiency
from membench.core.errors import MembenchError
from membench.core.garbage import without_collection
from membench.core.machine import Machine
from membench.core.mesh import Mesh
from membench.core.optimizer import UpdateOf
from membench.core.pipeline import Pipeline
from membench.core.task_graph import TaskGraph
from membench.cost.roofline import RooflineCost
from membench.planning.parallel.pipeline import pipelined
from membench.planning.rewrites.micro_batch import GraphAt
from membench.planning.rewrites.update import add_states
from membench.steps.arguments import as_machine
from membench.steps.parallel.ranks import Ranks
from membench.steps.plan import Runs, plan_step
from membench.steps.predicted.breakdown import OperatorTime, operator_times
from membench.steps.predicted.prediction import Prediction, after_rounds, of_stages, predicted
from membench.steps.predicted.simulated_step import simulated_pipeline, simulated_step
from membench.strategies.base import Strategy
from membench.strategies.pytorch import PyTorch


def rank_cost(mesh: Mesh, efficiency: Efficiency, machine: Machine | None) -> RooflineCost:
    """Return the costs of a rank's step on its device, which shares its link with others.

    Args:
        machine: of each host; None: the one of ``conf/machine/server.yaml``.

    Raises:
        MembenchError: any device may be in the hosts of the mesh's cluster.
    """
    # a single rank has no group for a collective, and says so
    return RooflineCost(
        mesh.cluster.loaded, efficiency, as_machine(machine), mesh=mesh if mesh.axes else None
    )


@dataclass(frozen=True)
class RankStep:
    """A captured step, as each rank runs it on the device of its cluster.

    Attributes:
        graph_at: returns the captured graph of one device for a number of samples.
        batch_size: samples of a rank, of one micro-batch where there are several.
        update: returns a new one for each rank; None: the step ends with the gradients.
        efficiency, machine: see `rank_cost`.
        budget_bytes: the most that the strategy may hold.
    """

    graph_at: GraphAt
    batch_size: int
    strategy: Strategy
    ranks: Ranks
    update: Callable[[], UpdateOf | None]
    efficiency: Efficiency
    machine: Machine | None = None
    budget_bytes: int | None = None

    @cached_property
    def cost(self) -> RooflineCost:
        """Of the step's tasks; see `rank_cost`."""
        return rank_cost(self.ranks.mesh, self.efficiency, self.machine)

    def planned(self) -> Runs:
        """Return the schedules of a rank, which is like all others.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        if self.ranks.pipeline is not None:
            raise MembenchError(
                "the ranks of a pipeline differ, and are predicted together; leave pp out of parallel, or the breakdown"
            )
        update, accumulate = self.update(), self.ranks.accumulate

        def graph_at(size: int) -> TaskGraph:
            return self.ranks.graph_of_rank(self.graph_at(size))

        runs = self._planned(graph_at, self.batch_size, update)
        if accumulate > 1:
            [first] = self._planned(lambda size: add_states(graph_at(size), update), self.batch_size)
            runs = (replace(first, count=accumulate - 1), *runs)
        return runs

    def predicted(self) -> Prediction:
        """Return the prediction of one rank: of a pipeline, whose ranks are simulated together, the one with the greatest memory."""
        pipeline = self.ranks.pipeline
        if pipeline is None:
            return self._of_all(self.planned())
        with without_collection():  # which would look through millions of objects again and again
            whole = self.graph_at(self.batch_size)
            if isinstance(self.strategy, PyTorch):
                whole = whole.plain_alone
            if pipeline.shorter is None:
                return of_stages(self._places(whole, pipeline))
            few, more = (self._places(whole, each) for each in pipeline.shorter)
            first, second = (each.micro_batches for each in pipeline.shorter)
            rounds = (pipeline.micro_batches - first) / (second - first)
            return of_stages(after_rounds(rounds, *each) for each in zip(few, more, strict=True))

    def broken_down(self) -> tuple[Prediction, tuple[OperatorTime, ...]]:
        """Return the prediction of a rank, which is like all others, and the operators of its step.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        runs = self.planned()
        return self._of_all(runs), operator_times(runs, self.cost)

    def _of_all(self, runs: Runs) -> Prediction:
        """Return the prediction of planned ranks that are alike."""
        return predicted(runs, simulated_step(runs, self.cost), self.ranks.mesh.cluster.profile)

    def _places(self, whole: TaskGraph, pipeline: Pipeline) -> list[Prediction]:
        """Return the prediction of each place in a pipeline, whose step ends with that of the last rank.

        Args:
            whole: the captured graph of a micro-batch, whose loss is scaled to its part of the step.
        """
        plans = []
        for rank in pipelined(whole, pipeline):
            graph = self.ranks.graph_of_rank(rank.graph)
            plans.append(
                self._planned({graph.batch_size: graph}.__getitem__, graph.batch_size, self.update())
            )
        steps = simulated_pipeline(plans, self.cost)
        step_time_s = max(step.step_time_s for step in steps)
        places = []
        for runs, step in zip(plans, steps, strict=True):
            alone = predicted(runs, step, self.ranks.mesh.cluster.profile)
            utilization = alone.utilization * alone.step_time_s / step_time_s
            places.append(replace(alone, step_time_s=step_time_s, utilization=utilization))
        return places

    def _planned(self, graph_at: GraphAt, batch_size: int, update: UpdateOf | None = None) -> Runs:
        return plan_step(graph_at, batch_size, self.strategy, self.cost, self.budget_bytes, update=update)
