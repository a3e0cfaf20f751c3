"""`torch.compile` with ``torch._functorch.config.activation_memory_budget``."""

import shutil
from dataclasses import dataclass
from typing import Any

from benchmarks.compare.peers.peer import Blocks, Peer, with_same_weights
from benchmarks.compare.step import Step, plain_step
from membench.core.errors import UnsupportedStrategy
from membench.core.step.workload import Workload


@dataclass(frozen=True)
class BudgetedCompile(Peer):
    """Inductor's kernels, and as much recomputation as the budget demands.

    Attributes:
        budget: the share of the saved activations' memory that may be kept: 1 recomputes only what fuses, 0 keeps the
            least.
    """

    budget: float

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        if workload.device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++"))):
            raise UnsupportedStrategy("Inductor needs a C++ compiler on the CPU, and there is none")
        from torch._functorch import config as autograd_config
        from torch._inductor import config as inductor_config
        from torch._inductor.compile_fx import compile_fx

        def inductor(graph: Any, examples: Any) -> Any:
            return compile_fx(graph, examples)

        own = with_same_weights(workload)
        # compiled on the first call, and for each network once
        autograd_config.activation_memory_budget = self.budget
        inductor_config.fallback_random = True  # eager's random numbers, so that gradients can be compared
        # Dynamo takes what it has compiled of the same code for the same backend, whatever the budget is
        own.module.compile(backend=inductor, dynamic=False)
        return plain_step(own)
