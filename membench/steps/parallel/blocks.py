"""The modules of which a network has several: gathered one by one, divided into a pipeline's stages."""

from collections import Counter

import torch
from torch import nn

from membench.capture.operators.unquantized import is_packed
from membench.core.checks import choice
from membench.core.errors import MembenchError
from membench.core.step.pipeline import Pipeline, PipelineSchedule
from membench.core.step.stored import stored_weights


def repeated_classes(module: nn.Module) -> frozenset[str]:
    """Return the names of classes of which a list of modules has several: the blocks of a network."""
    found: Counter[str] = Counter()
    for parent in module.modules():
        if isinstance(parent, nn.ModuleList | nn.Sequential):
            kinds = Counter(type(child).__name__ for child in parent)
            found |= Counter({kind: number for kind, number in kinds.items() if number > 1})
    return frozenset(found)


def modules_of(module: nn.Module, classes: frozenset[str]) -> tuple[str, ...]:
    """Return the paths of modules of some classes, without that of the module itself."""
    return tuple(name for name, each in module.named_modules() if name and type(each).__name__ in classes)


def groups_of(module: nn.Module, classes: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """Return the names of each module's weights, for some classes, without those of wrapped modules inside it.

    Raises:
        MembenchError: the module has no module of such a class.
    """
    wrapped = set(modules_of(module, classes))
    if not wrapped:
        raise MembenchError(
            f"{type(module).__name__} has no module of a class {', '.join(sorted(classes)) or 'that is repeated'}; "
            "name the classes whose modules are gathered one by one"
        )
    groups: dict[str, list[str]] = {}
    for weight in stored_weights(module):
        parts = weight.split(".")
        owners = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        owner = next((name for name in owners if name in wrapped), None)
        if owner is not None:
            groups.setdefault(owner, []).append(weight)
    return tuple(map(tuple, groups.values()))


def kept_dtypes(module: nn.Module) -> tuple[tuple[str, torch.dtype], ...]:
    """Return the dtype of the shards of each weight by name: its own, whatever it is converted to where it is gathered.

    Packed weights are left out: nothing converts them, and those that are packed when they are moved have another dtype
    before.
    """
    weights = stored_weights(module).items()
    return tuple((name, weight.dtype) for name, weight in weights if not is_packed(weight))


def stage_begins(module: nn.Module, classes: frozenset[str], stages: int, end_blocks: int = 1) -> tuple[str, ...]:
    """Return the module with which each stage but the first begins, if all have equally many blocks of the network.

    Args:
        classes: names of the blocks' classes.
        end_blocks: blocks as which what is before the blocks, and what is behind them, each count: one in torchtitan's
            `generate_llm_fqn_per_model_part`, none in Megatron-LM.

    Raises:
        MembenchError: there are fewer blocks than stages.
    """
    named = modules_of(module, classes)
    blocks = [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
    if len(blocks) < stages:
        raise MembenchError(
            f"{len(blocks)} blocks ({', '.join(sorted(classes)) or 'of no class'}) cannot be divided into {stages} "
            f"stages; use fewer stages"
        )
    least, more = divmod(len(blocks) + 2 * end_blocks, stages)
    firsts = (stage * least + min(stage, more) - end_blocks for stage in range(1, stages))
    return tuple(blocks[min(first, len(blocks) - stages + stage)] for stage, first in enumerate(firsts, 1))


def pipeline_of(
    module: nn.Module,
    classes: frozenset[str],
    ranks: int,
    schedule: str,
    stages: int | None,
    micro_batches: int,
    gradient_dtype: torch.dtype | None = None,
    end_blocks: int = 1,
) -> Pipeline:
    """Return the pipeline of a module over some ranks.

    Args:
        classes: names of the classes of the network's blocks; see `stage_begins`.
        schedule, stages: see `membench.predict`.
        end_blocks: see `stage_begins`.

    Raises:
        MembenchError: there is no such schedule, or the module or the micro-batches cannot be divided.
    """
    order = choice(PipelineSchedule, "pipeline", schedule)
    each = 2 if order is PipelineSchedule.INTERLEAVED else 1
    begins = stage_begins(module, classes, stages or each * ranks, end_blocks)
    return Pipeline(ranks, begins, micro_batches, order, gradient_dtype)
