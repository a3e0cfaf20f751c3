"""Cell: one step of an experiment, built once from its configuration."""

from dataclasses import dataclass, replace

from membench.backends.real import check_products, real_device
from membench.capture.trace import Place
from membench.core.checks import COUNT, check, choice
from membench.core.configuration import instantiate
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.hardware.cluster import SINGLE_DEVICE, Cluster
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.machine import Machine
from membench.core.record import Configuration, is_simulated
from membench.core.step.kernels import Kernels
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.core.targets import find_function
from membench.core.units import parse_bytes
from membench.cost.roofline import RooflineCost
from membench.frameworks.base import Framework
from membench.models.serving import Serving
from membench.planning.parallel.exchange import Exchange
from membench.steps.arguments import as_bytes, as_machine, in_process
from membench.steps.request import StepRequest
from membench.strategies.base import Strategy
from membench.sweep.cells.method import Method
from membench.sweep.cells.metrics import StepMetrics
from membench.sweep.cells.model import Model


@dataclass(frozen=True)
class Cell:
    """One step of a model by a method, with everything that decides its result.

    Attributes:
        configuration: as composed; only for the hash and the record.
        batch_size: samples of a step, over all processes or devices.
        framework: whose lowering and efficiency a simulation takes.
        cluster: cluster of simulated devices; one without a device where the step runs on this machine.
        backend: ``"cpu"``, ``"cuda"`` or ``"simulated"``.
        is_simulated: whether the step is simulated rather than run.
        cuda_graph: whether the step is replayed as one CUDA graph.
        seed: seed of the weights and the example batch.
        budget_bytes: the most that a step may hold; None: the device's memory.
        micro_batch: samples at a time, ``"fitted"``, ``"fastest"``, or None for what the strategy chooses.
        exchange: when gradients are averaged over several processes or devices.
        optimizer: updates the weights in the step; None: the step ends with the gradients.
        precision, channels_last, holds_output: see `Workload`.
        serving: the step is one in which the network serves; None: it is the model's own.
        machine: that the simulated device is in; None: the one of ``conf/machine/server.yaml``.
        host_memory_bytes: the most that a step may hold in host memory; None: that of a simulated machine, or any.
        parallel: processes by axis that divide or repeat the weights, see `membench.steps.parallel.real_ranks.divided`;
            empty: all have the weights, and exchange gradients.
        kernels: what computes the step; None: see `StepRequest`.
        step_metrics: adds numbers of one paper to the record; None: the record has the general ones.
    """

    configuration: Configuration
    model: Model
    batch_size: int
    method: Method
    framework: Framework
    cluster: Cluster
    backend: str
    is_simulated: bool
    cuda_graph: bool
    seed: int
    budget_bytes: int | None
    micro_batch: int | str | None
    exchange: Exchange
    step_metrics: StepMetrics | None
    optimizer: WeightUpdate | None = None
    precision: Precision | None = None
    channels_last: bool = False
    holds_output: bool = False
    serving: Serving | None = None
    machine: Machine | None = None
    host_memory_bytes: int | None = None
    parallel: tuple[tuple[str, int], ...] = ()
    kernels: Kernels | None = None

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> "Cell":
        """Return the cell that a resolved configuration describes.

        Args:
            configuration: plain dicts: ``model``, ``batch_size``, ``strategy``, ``framework``, ``backend`` and
                ``seed``; to be simulated, ``device``; optional: ``cluster``, ``budget``, ``micro_batch``, ``exchange``,
                ``metrics``, ``optimizer``, ``precision``, ``channels_last``, ``serving``, ``machine``, ``host_memory``,
                ``parallel``, ``kernels``, ``holds_output``, and those of `ProcessKeywords`.

        Raises:
            MembenchError: a value is not allowed; the message says which.
        """
        backend, budget = configuration["backend"], configuration.get("budget")
        precision, kernels = configuration.get("precision"), configuration.get("kernels")
        device, metrics = (instantiate(configuration.get("device"), DeviceProfile), configuration.get("metrics"))
        cluster = instantiate(configuration.get("cluster"), Cluster) or SINGLE_DEVICE
        check(COUNT, batch_size=configuration["batch_size"])
        return cls(
            configuration=configuration,
            model=Model.from_configuration(configuration["model"]),
            batch_size=configuration["batch_size"],
            method=Method(configuration["strategy"]),
            framework=instantiate(configuration["framework"], Framework),
            cluster=replace(cluster, device=in_process(device, configuration)) if device else cluster,
            backend=backend["name"],
            is_simulated=is_simulated(configuration),
            cuda_graph=backend.get("cuda_graph", False),
            seed=int(configuration["seed"]),
            budget_bytes=None if budget is None else parse_bytes(budget),
            micro_batch=configuration.get("micro_batch"),
            exchange=choice(Exchange, "exchange", configuration.get("exchange", Exchange.AS_MADE)),
            step_metrics=find_function(metrics) if metrics else None,
            optimizer=instantiate(configuration.get("optimizer"), WeightUpdate),
            precision=None if precision is None else Precision.of_step(precision),
            channels_last=bool(configuration.get("channels_last")),
            holds_output=bool(configuration.get("holds_output")),
            serving=instantiate(configuration.get("serving"), Serving),
            machine=instantiate(configuration.get("machine"), Machine),
            host_memory_bytes=as_bytes(configuration.get("host_memory"), "host_memory"),
            parallel=tuple((configuration.get("parallel") or {}).items()),
            kernels=choice(Kernels, "kernels", kernels) if kernels else None,
        )

    def request(self, strategy: Strategy, exchange: Exchange | None = None) -> StepRequest:
        """Return what is asked of the step under a strategy.

        Args:
            exchange: when processes average gradients; None: they do not.
        """
        made = {"strategy": strategy, "exchange": exchange, "optimizer": self.optimizer, "cuda_graph": self.cuda_graph}
        return StepRequest.of({**self.configuration, **made}, strategy.name)

    @property
    def simulated_device(self) -> DeviceProfile:
        """The device that a simulation plays.

        Raises:
            MembenchError: the configuration has none.
        """
        if self.configuration.get("device") is None:
            raise MembenchError("a simulated cell needs a device; choose one, such as device=k40m")
        return self.cluster.profile

    @property
    def simulated_machine(self) -> Machine:
        """The machine that the simulated device is in."""
        return as_machine(self.machine, self.host_memory_bytes)

    @property
    def cost(self) -> RooflineCost:
        """The cost model of the simulated device while all devices of the cluster copy."""
        machine = self.cluster.share_of(self.simulated_machine)
        return RooflineCost(self.cluster.loaded, self.framework.efficiency, machine)

    def captured_on(self) -> Place:
        """Return the device whose operators are captured: that on which the step runs, or the framework's.

        Raises:
            MembenchError: the backend needs a GPU, and there is none.
        """
        if self.is_simulated:
            return self.framework.captured_on(self.simulated_device)
        return real_device(self.backend)

    def workload(self, batch_size: int, *, is_kept: bool = False) -> Workload:
        """Build the model and an example batch: without values to be simulated, on the CPU to be run.

        Args:
            is_kept: see `Model.workload`; has no effect on a step that is run, divided or that serves.

        Raises:
            MembenchError: the device does not run this precision.
        """
        device = "meta" if self.is_simulated else "cpu"
        is_kept = is_kept and self.is_simulated and self.serving is None and not self.parallel
        workload = self.model.workload(batch_size, seed=self.seed, device=device, is_kept=is_kept)
        if self.serving is not None:
            workload = self._served(self.serving, workload)
        workload = replace(
            workload, precision=self.precision, channels_last=self.channels_last, holds_output=self.holds_output
        )
        if self.is_simulated:
            return workload
        check_products(self.precision, real_device(self.backend))
        return workload.converted()

    def _served(self, serving: Serving, workload: Workload) -> Workload:
        if self.optimizer is not None:
            raise MembenchError("a network that serves does not train; leave serving or optimizer out")
        if self.precision is not None and self.precision.autocast_dtype is not None:
            raise MembenchError(
                f"a cache has the precision of a whole step, and {self.precision} is of a part; write precision=bf16 "
                f"or fp16"
            )
        return serving.workload(workload)
