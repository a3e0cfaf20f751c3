"""A captured step as one of several GPUs, or a single one, runs it: planned, simulated and predicted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.core.hardware.machine import Machine
from membench.core.hardware.mesh import Mesh
from membench.core.libraries.garbage import without_collection
from membench.core.step.optimizer import UpdateOf
from membench.core.step.pipeline import PIPELINED, Pipeline
from membench.cost.roofline import RooflineCost
from membench.planning.memory.liveness import host_peak_bytes
from membench.planning.parallel.pipeline import pipelined
from membench.planning.rewrites.layer_by_layer import layer_by_layer
from membench.planning.rewrites.micro_batch import GraphAt
from membench.planning.rewrites.update import add_states
from membench.steps.arguments import as_machine
from membench.steps.parallel.ranks import Ranks
from membench.steps.plan import Runs, StepPlanner
from membench.steps.predicted.breakdown import OperatorTime, operator_times
from membench.steps.predicted.prediction import Prediction, after_rounds, of_stages, predicted
from membench.steps.simulated_step import simulated_pipeline, simulated_step
from membench.strategies.base import Strategy


def rank_cost(
    mesh: Mesh, efficiency: Efficiency, machine: Machine | None, host_memory_bytes: int | None = None
) -> RooflineCost:
    """Return the costs of a rank's step on its device, which shares its link, and its host, with others.

    Args:
        machine: each host's machine; None: the one of ``conf/machine/server.yaml``.
        host_memory_bytes: the rank's own part of it; None: as much as any other rank of the host.

    Raises:
        MembenchError: any device may be in the hosts of the mesh's cluster.
    """
    share = mesh.cluster.share_of(as_machine(machine))
    if host_memory_bytes is not None:
        share = replace(share, memory_bytes=host_memory_bytes)
    # a single rank has no group for a collective, and says so
    return RooflineCost(mesh.cluster.loaded, efficiency, share, mesh=mesh if mesh.axes else None)


def equal_part(hosts: Iterable[Sequence[int]], needs_bytes: Sequence[int], memory_bytes: int) -> int:
    """Return the host memory of each rank that needs more than that, where the others get what they need.

    Args:
        hosts: how many ranks of each kind a host has.
        needs_bytes: host memory that a rank of each kind needs.
        memory_bytes: memory of a host. It is returned where there is enough for all.
    """
    part_bytes = memory_bytes
    for counts in hosts:
        left, ranks = memory_bytes, sum(counts)
        for need_bytes, count in sorted(zip(needs_bytes, counts, strict=True)):
            if need_bytes * ranks > left:
                part_bytes = min(part_bytes, left // ranks)
                break
            left, ranks = left - need_bytes * count, ranks - count
    return part_bytes


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
                if self.ranks.pipeline.ranks > 1
                else "a breakdown is of a step of one micro-batch; leave accumulate out, or the breakdown"
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
        """Return one rank's prediction, in a pipeline, simulated as a whole, that with the greatest memory."""
        pipeline = self.ranks.pipeline
        if pipeline is None:
            return self._of_all(self.planned())
        with without_collection():  # which would look through millions of objects again and again
            whole = self.strategy.scheduled(self.graph_at(self.batch_size))
            if pipeline.shorter is None or self._is_layer_by_layer(pipeline):
                return of_stages(self._in_hosts(self._places(whole, pipeline)))
            few, more = (self._places(whole, each) for each in pipeline.shorter)
            first, second = (each.micro_batches for each in pipeline.shorter)
            rounds = (pipeline.micro_batches - first) / (second - first)
            places = [after_rounds(rounds, *each) for each in zip(few, more, strict=True)]
            return of_stages(self._in_hosts(places))

    def broken_down(self) -> tuple[Prediction, tuple[OperatorTime, ...]]:
        """Return the prediction of a rank, which is like all others, and the operators of its step.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        runs = self.planned()
        return self._of_all(runs), operator_times(runs, self.cost)

    def _of_all(self, runs: Runs) -> Prediction:
        """Return the prediction of planned ranks that are alike."""
        alone = predicted(runs, simulated_step(runs, self.cost), self.ranks.mesh.cluster.profile)
        return self._in_hosts([alone])[0]

    def _in_hosts(self, places: Sequence[Prediction]) -> list[Prediction]:
        """Return the predictions of ranks, one of each place in a pipeline, with the host memory of a host's ranks."""
        hosts = self.ranks.mesh.places_in_hosts(PIPELINED)
        held = [sum(n * each.host_bytes for n, each in zip(of, places, strict=True)) for of in hosts]
        has_room = max(held) <= as_machine(self.machine).memory_bytes
        several = self.ranks.mesh.cluster.devices > 1
        return [
            replace(each, host_bytes=max(held), fits=each.fits and has_room, kind=replace(each.kind, several=several))
            for each in places
        ]

    def _places(self, whole: TaskGraph, pipeline: Pipeline) -> list[Prediction]:
        """Return the prediction of each place in a pipeline, whose step ends with that of the last rank.

        Args:
            whole: the captured graph of a micro-batch, whose loss is scaled to its part of the step.
        """
        graphs = [rank.graph for rank in pipelined(whole, pipeline)]
        if self._is_layer_by_layer(pipeline):
            graphs = [layer_by_layer(graph) for graph in graphs]
        plans = self._planned_places([self.ranks.graph_of_rank(graph) for graph in graphs])
        steps = simulated_pipeline(plans, self.cost)
        step_time_s = max(step.step_time_s for step in steps)
        places = []
        for runs, step in zip(plans, steps, strict=True):
            alone = predicted(runs, step, self.ranks.mesh.cluster.profile)
            utilization = alone.utilization * alone.step_time_s / (step_time_s or inf)
            places.append(replace(alone, step_time_s=step_time_s, utilization=utilization))
        return places

    def _is_layer_by_layer(self, pipeline: Pipeline) -> bool:
        """Return whether micro-batches are not one after another: on a device that is not one of several stages."""
        return bool(self.strategy.layer_by_layer) and pipeline.ranks == 1

    def _planned_places(self, graphs: Sequence[TaskGraph]) -> list[Runs]:
        """Return the schedules of each place in a pipeline, which leave the rest of their host's memory to others."""
        memory_bytes = as_machine(self.machine).memory_bytes

        def plan(graph: TaskGraph, host_memory_bytes: int) -> Runs:
            cost = rank_cost(self.ranks.mesh, self.efficiency, self.machine, host_memory_bytes)
            graph_at = {graph.batch_size: graph}.__getitem__
            return self._planned(graph_at, graph.batch_size, self.update(), cost)

        plans = [plan(graph, memory_bytes) for graph in graphs]
        needs_bytes = [max(host_peak_bytes(run.schedule) for run in runs) for runs in plans]
        part_bytes = equal_part(self.ranks.mesh.places_in_hosts(PIPELINED), needs_bytes, memory_bytes)
        return [
            plan(graph, part_bytes) if need_bytes > part_bytes else runs
            for graph, runs, need_bytes in zip(graphs, plans, needs_bytes, strict=True)
        ]

    def _planned(
        self, graph_at: GraphAt, batch_size: int, update: UpdateOf | None = None, cost: RooflineCost | None = None
    ) -> Runs:
        # where the program has micro-batches, a method that divides a batch does not divide them again
        has_micro_batches = self.ranks.accumulate > 1 or self.ranks.pipeline is not None
        micro_batch = batch_size if has_micro_batches else None
        planner = StepPlanner(graph_at, batch_size, self.strategy, cost or self.cost, update, micro_batch)
        return planner.within(self.budget_bytes)
