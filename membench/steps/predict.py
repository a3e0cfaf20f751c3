"""The library entry `membench.predict`: memory and time of a step on a device, without running or allocating anything.

capture as CUDA runs it -> annotate with the device's costs -> strategy -> validate -> caching allocator, virtual clocks
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Unpack

from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.trace import ANY_GPU
from membench.capture.update.captured_update import CapturedUpdate
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency, with_rates
from membench.core.hardware.machine import Machine
from membench.core.step.fully_sharded import check_whole
from membench.core.step.optimizer import Gradients, UpdateOf
from membench.core.step.sharding import REPLICATED
from membench.core.step.torch_settings import check_no_autocast
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.parallel.partitioned_update import partitioned
from membench.planning.rewrites.micro_batch import GraphAt
from membench.planning.rewrites.update import add_update, updated_workload
from membench.steps.arguments import Batch, names_of, workload_of
from membench.steps.keywords import PredictKeywords, check_is_module, check_keywords, ranks_in, takes, workload_options
from membench.steps.parallel.ranks import ONE_RANK, Ranks, check_one_device, ranks_of
from membench.steps.plan import Runs
from membench.steps.predicted.breakdown import OperatorTime
from membench.steps.predicted.fused_graphs import compiled_parts, step_graphs
from membench.steps.predicted.prediction import Prediction, unpredicted_settings
from membench.steps.predicted.rank_step import RankStep
from membench.steps.request import Hardware, StepRequest


class Predictor:
    """A step that is captured as CUDA runs it, once for each architecture, and predicted on any number of devices.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        request: the method, its budget, the update and the kernels.
        ranks: each of them runs the step on as many samples.
        rates: values that replace those of ``conf/framework/pytorch.yaml``, by the names of `KernelRates`.
        keeps_layout: compiled code leaves images as they are, whatever torch's compiler is set to here.
    """

    def __init__(
        self,
        workload: Workload,
        request: StepRequest,
        ranks: Ranks = ONE_RANK,
        rates: Mapping[str, float] | None = None,
        *,
        keeps_layout: bool = False,
    ) -> None:
        self._framework = configuration.load("framework", "pytorch")
        self._efficiency: Efficiency = self._framework.efficiency
        if rates:
            self._efficiency = with_rates(self._efficiency, rates)
        _check_program(workload, request, ranks)
        known, compiled = compiled_parts(workload.module, workload.loss, request.kernels)
        if compiled is not None and keeps_layout:
            compiled = replace(compiled, keeps_layout=True)
        step = replace(workload, compiled=known, places_gradients=True)
        if ranks.pipeline is not None:
            step = replace(step, loss_scale=1 / ranks.pipeline.micro_batches)
        else:
            step = updated_workload(step, request.optimizer)
        check_no_autocast()
        self._of_compiler = () if compiled is None else compiled.unpredicted
        self._step, self._compiled = step, compiled
        self._graphs: dict[AnyGpu, GraphAt] = {}
        self._request = request
        self._ranks = ranks
        self._update = self._captured_update()

    def _captured_update(self) -> UpdateOf | None:
        """Return the update of a rank.

        Raises:
            MembenchError: replicas are to divide an update that there is not, or that runs in the backward pass.
        """
        divides = self._ranks.partitions_update
        by = self._request.optimizer
        if by is None:
            if divides:
                raise MembenchError(
                    "partition_optimizer=True divides an optimizer's update; name the optimizer, or leave it out"
                )
            return None
        whole = CapturedUpdate(by, self.module)
        if not divides:
            return whole
        if by.in_backward:
            raise MembenchError(
                "partition_optimizer=True exchanges weights behind the update of all; leave it out, or in_backward"
            )
        return partitioned(whole, REPLICATED, self._ranks.mesh.sizes[REPLICATED])

    @property
    def module(self) -> nn.Module:
        """The captured module."""
        return self._step.module

    def graph_on(self, device: DeviceProfile | None = None) -> TaskGraph:
        """Return the step of the whole batch on a device, its update included.

        Args:
            device: None: that of the ranks' cluster, or any where they have none.
        """
        cluster = self._ranks.mesh.cluster
        used = device or (cluster.profile if cluster.device else None)
        gpu = self._framework.captured_on(used) if used else ANY_GPU
        graph = self._graphs_on(gpu)(self._step.batch_size)
        return add_update(self._ranks.graph_of_rank(graph), self._update)

    def _graphs_on(self, gpu: AnyGpu) -> GraphAt:
        """Return the function from a number of samples to the graph of a step on a GPU."""
        if gpu not in self._graphs:
            division = self._ranks.division
            prepared = division.divided if division else nullcontext
            captures = Captures(self._step, gpu, uses_values=True, prepared=prepared)
            self._graphs[gpu] = step_graphs(captures, self._compiled, self._ranks.wrapped).graph_at
        return self._graphs[gpu]

    def on(self, device: DeviceProfile | None = None, machine: Machine | None = None) -> Prediction:
        """Return the prediction for a device; see `predict`.

        Args:
            device: None: that of the ranks' cluster.
            machine: that the device is in; None: the one of ``conf/machine/server.yaml``.
        """
        return self._with_settings(self._step_on(device, machine).predicted(), device)

    def planned(self, device: DeviceProfile | None = None, machine: Machine | None = None) -> tuple[Runs, RooflineCost]:
        """Return the schedules of a step of ranks that are alike, and the costs by which they were planned; see `on`.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        step = self._step_on(device, machine)
        return step.planned(), step.cost

    def broken_down(
        self, device: DeviceProfile | None = None, machine: Machine | None = None
    ) -> tuple[Prediction, tuple[OperatorTime, ...]]:
        """Return the prediction for a device, and the operators of its step; see `on`.

        Raises:
            MembenchError: there is a pipeline, whose ranks differ.
        """
        prediction, operators = self._step_on(device, machine).broken_down()
        return self._with_settings(prediction, device), operators

    def _with_settings(self, prediction: Prediction, device: DeviceProfile | None) -> Prediction:
        """Return the prediction with what of torch's settings is not in it."""
        used = self._ranks.mesh.cluster.profile if device is None else device
        graph = self._graphs_on(self._framework.captured_on(used))(self._step.batch_size)
        sentences = unpredicted_settings(graph, used.allocator)
        named = names_of(self._step, self._request.optimizer)
        return replace(prediction, unpredicted=(*self._of_compiler, *sentences), **named)

    def _step_on(self, device: DeviceProfile | None, machine: Machine | None) -> RankStep:
        # each stage of a pipeline updates its own weights
        update = self._captured_update if self._ranks.pipeline is not None else lambda: self._update
        ranks = self._ranks if device is None else self._ranks.on(device)
        return RankStep(
            self._graphs_on(self._framework.captured_on(ranks.mesh.cluster.profile)),
            self._step.batch_size,
            self._request.strategy,
            ranks,
            update,
            self._efficiency,
            machine,
            self._request.budget_bytes,
        )


def _check_program(workload: Workload, request: StepRequest, ranks: Ranks) -> None:
    """Refuse a program around the step that its ranks cannot have."""
    if not workload.trains and ranks.pipeline is not None and ranks.pipeline.ranks == 1:
        raise MembenchError("accumulate adds up gradients, which a step of inference does not have; leave it out")
    if workload.holds_output and not request.strategy.runs_as_written:
        raise MembenchError(
            f"holds_output is of plain PyTorch's program, and a step under strategy {request.strategy.name!r} returns "
            "the loss alone; leave it out"
        )
    if workload.holds_output and ranks.pipeline is not None and ranks.pipeline.ranks > 1:
        raise MembenchError("a pipeline calls the stages itself; leave holds_output out, or pp out of parallel")
    is_alone = not (ranks.mesh.axes or ranks.pipeline or ranks.accumulate > 1) and request.strategy.runs_as_written
    if request.optimizer and request.optimizer.gradients is Gradients.FREED_LATE and not is_alone:
        raise MembenchError(
            "gradients='freed_late' is predicted on one device, under plain PyTorch and without accumulate; leave it "
            "out, or these"
        )


@takes(PredictKeywords)
def predict(
    module: nn.Module, loss: Callable[..., Tensor] | None, batch: Batch, **options: Unpack[PredictKeywords]
) -> Prediction:
    """Predict the memory and the time of a step of training or inference on a device that need not be at hand.

    Nothing is allocated: module and batch may be on the meta device (``with torch.device("meta")``), and weights
    elsewhere are only read.

    Args:
        module, loss, batch: see `membench.compile`; of several GPUs the batch is that of one of them.
        options: see `membench.steps.keywords.PredictKeywords`; by default the strategy is plain PyTorch.

    Raises:
        UnsupportedModel: the module cannot be captured, or cut into stages; names the layer.
        UnsupportedStrategy: there is no such strategy, or it cannot schedule this graph.
        InfeasibleSchedule: the strategy cannot keep the budget, or the limit of host memory.
        MembenchError: an argument is invalid.
    """
    check_is_module(module)
    check_keywords(PredictKeywords, options, "predict")
    check_whole(module)
    workload = workload_of(module, loss, batch, **workload_options(options))
    request, hardware, of_ranks = (
        StepRequest.of(options, "pytorch"),
        Hardware.of({"nodes": 1, **options}),
        ranks_in(options),
    )
    is_alone = options.get("cluster") is None
    if is_alone:
        check_one_device(nodes=options.get("nodes", 1), **of_ranks)
    is_one_step = is_alone and of_ranks.get("accumulate", 1) == 1
    ranks = ONE_RANK.on(hardware.cluster.profile) if is_one_step else ranks_of(module, hardware.cluster, **of_ranks)
    return Predictor(workload, request, ranks).on(machine=hardware.machine)
