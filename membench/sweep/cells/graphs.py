"""Graphs: the graphs captured last, shared by neighbouring cells of one model."""

from dataclasses import replace
from typing import Any

from membench.capture.capture import Captures
from membench.core.errors import UnsupportedModel
from membench.core.graph.task_graph import TaskGraph
from membench.core.libraries.distributed import joined
from membench.core.record import configuration_hash
from membench.core.step.kernels import WHOLE_STEP, Kernels
from membench.planning.rewrites.micro_batch import GraphAt
from membench.planning.rewrites.update import updated_workload
from membench.steps.parallel.real_ranks import RealRanks, divided, real_ranks
from membench.steps.predicted.fused_graphs import step_graphs
from membench.sweep.cells.cell import Cell


class Graphs:
    """A cache of one model's captures: cells of one model, batch size, backend and seed capture once.

    Attributes:
        ranks: that divide or repeat the weights of the last captures' module; None: each process has them.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._captures: Captures | None = None
        self._lowered: dict[tuple[str, int], TaskGraph] = {}
        self.ranks: RealRanks | None = None

    def captures(self, cell: Cell, batch_size: int) -> Captures:
        """Return the captures of a cell's model; of several processes, each captures its share of the batch."""
        kept = cell.optimizer and cell.optimizer.gradients
        device = cell.captured_on()
        key = (
            cell.model,
            batch_size,
            cell.backend,
            cell.seed,
            kept,
            device,
            cell.precision,
            cell.channels_last,
            cell.serving,
            cell.parallel,
            cell.kernels,
        )
        if key != self._key or self._captures is None:
            processes = joined()
            workload = cell.workload(batch_size, is_kept=True).share(processes.rank, processes.count)
            workload = updated_workload(workload, cell.optimizer)
            self.ranks = None
            if cell.parallel:
                module, self.ranks = real_ranks(divided(workload.module, dict(cell.parallel)))
                workload = replace(workload, module=module)
            self._captures, self._lowered, self._key = Captures(workload, device), {}, key
        return self._captures

    def lowered_at(self, cell: Cell, batch_size: int) -> GraphAt:
        """Return the function from a number of samples to the graph, lowered to the cell's framework."""
        captures = self.captures(cell, batch_size)
        graphs = step_graphs(captures, WHOLE_STEP if cell.kernels is Kernels.INDUCTOR else None)
        name = configuration_hash(cell.configuration["framework"])

        def graph_at(size: int) -> TaskGraph:
            if (name, size) not in self._lowered:
                graph = graphs.graph_at(size)
                lowered = cell.framework.lower(graph)
                if lowered.mode is not graph.mode:
                    cause = f"framework {cell.framework.name!r} runs no step of {graph.mode}"
                    raise UnsupportedModel(graph.name, cause, "choose framework=pytorch")
                self._lowered[name, size] = lowered
            return self._lowered[name, size]

        return graph_at
