"""Model: a network and its example batch, as a file of ``conf/model`` describes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from membench.core import configuration
from membench.core.configuration import instantiate
from membench.core.workload import Workload


@dataclass(frozen=True)
class Model:
    """A configured network.

    Attributes:
        module: description of the network, instantiated for each workload.
        loss: description of its loss; None: a model for inference.
        input_shape: of one sample.
        classes: number of values that a target takes.
        vocabulary: number of tokens; None: inputs are real numbers.
        target_shape: of one sample's targets, such as one for each time step.
    """

    name: str
    module: Mapping[str, Any]
    loss: Mapping[str, Any] | None
    input_shape: Sequence[int]
    classes: int
    vocabulary: int | None = None
    target_shape: Sequence[int] = ()

    @classmethod
    def from_configuration(cls, values: Mapping[str, Any]) -> "Model":
        """Return the model that the resolved options of a file of ``conf/model`` describe."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})

    @classmethod
    def named(cls, name: str) -> "Model":
        """Return the model of ``conf/model/<name>.yaml``.

        Raises:
            MembenchError: there is no such file; lists the files that there are.
        """
        return cls.from_configuration(configuration.read("model", name))

    def workload(self, batch_size: int, *, seed: int, device: str) -> Workload:
        """Build the network and an example batch, both from the seed.

        Args:
            device: ``"cpu"``, or ``"meta"`` for shapes without values.
        """
        torch.manual_seed(seed)
        with torch.device(device):
            module, loss = instantiate(self.module), instantiate(self.loss)
            inputs, targets = self.example_batch(batch_size)
        if loss is None:
            return Workload(self.name, module.eval(), None, (inputs,))
        return Workload(self.name, module, loss, (inputs,), (targets,))

    def example_batch(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return random inputs (batch_size, *input_shape) and integer targets (batch_size, *target_shape)."""
        shape = (batch_size, *self.input_shape)
        inputs = torch.randint(self.vocabulary, shape) if self.vocabulary else torch.randn(shape)
        return inputs, torch.randint(self.classes, (batch_size, *self.target_shape))
