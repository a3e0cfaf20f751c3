"""transformers' plans of tensor parallelism, with the styles that its networks name.

    colwise            weight by rows, output in parts                   backward: all-reduce of the input's gradient
    rowwise            weight by columns, input in parts                 forward: all-reduce of the output

`STYLES` has all of them: those of ``transformers/distributed/tensor_parallel.py`` since 5.17, and earlier names of
``transformers/integrations/tensor_parallel.py`` with the same effect, from 5.0 on. Linear layers and embeddings run as
`DTensor` runs them, by torch's own styles; other modules run on local tensors.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from membench.core.errors import MembenchError
from membench.core.libraries.torch_internals import module_members


@dataclass(frozen=True)
class Style:
    """What a style does to a module; without any of these, each rank has the whole module and does what the others do.

    Attributes:
        matrix: dimension along which weights of two dimensions and more are divided, counted from the last; None: each
            rank has all.
        vector: the same of weights of one dimension, but for a bias, which `bias` says.
        bias: biases are divided as well.
        packed: equal parts of that dimension, one behind another, of which each is divided.
        gathers: the output is gathered from its parts, along the last dimension, in the forward pass.
        splits: each rank takes its part of the input, along the last dimension; the input's gradient is gathered in the
            backward pass.
        sums_output: the output is added up over ranks in the forward pass.
        sums_gradients: positions of the arguments whose gradients are added up over ranks in the backward pass.
        sums_weights: gradients of the module's weights are added up over ranks in the backward pass.
        sums_rotated: the gradient of the output's last ``qk_rope_head_dim`` features is added up over ranks in the
            backward pass.
        shares: each rank takes the input divided by their number.
        sequence: inputs are parts of sequences, and so are outputs; gradients of weights are added up.
    """

    matrix: int | None = None
    vector: int | None = None
    bias: bool = False
    packed: int = 1
    gathers: bool = False
    splits: bool = False
    sums_output: bool = False
    sums_gradients: tuple[int, ...] = ()
    sums_weights: bool = False
    sums_rotated: bool = False
    shares: bool = False
    sequence: bool = False


_ROWS: dict[str, Any] = {"matrix": -2, "vector": -1, "bias": True, "sums_gradients": (0,)}
_COLUMNS: dict[str, Any] = {"matrix": -1, "vector": -1, "sums_output": True}
_EXPERTS = Style(sums_gradients=(0, 2), sums_output=True)
"""Called with tokens, the numbers of their experts and the weights of these."""

STYLES = {
    "colwise": Style(**_ROWS),
    "colwise_gather_output": Style(**_ROWS, gathers=True),
    "colwise_rep": Style(**_ROWS, gathers=True),
    "packed_colwise": Style(**_ROWS, packed=2),
    "local_colwise": Style(**_ROWS),
    "rowwise": Style(**_COLUMNS),
    "rowwise_split_input": Style(**_COLUMNS, splits=True),
    "rowwise_rep": Style(**_COLUMNS, splits=True),
    "packed_rowwise": Style(matrix=-1, packed=2, sums_output=True),
    "local_rowwise": Style(**_COLUMNS),
    "local_packed_rowwise": Style(matrix=-1, packed=2, sums_output=True),
    "embedding_rowwise": Style(matrix=-2, sums_output=True),
    "embedding_colwise": Style(matrix=-1, gathers=True),
    "sequence_parallel": Style(sequence=True),
    "replicated_with_grad_allreduce": Style(sums_weights=True),
    "mla_kv_a_proj": Style(sums_rotated=True),
    "moe_tp_experts": _EXPERTS,
    "gather": _EXPERTS,
    "moe_identity_expert": Style(shares=True),
    "all_reduce": Style(sums_output=True),
    "local_params": Style(),
    "local": Style(),
    "replicate": Style(),
}


def plan_of_transformers(module: nn.Module, named: Mapping[str, str]) -> dict[str, ParallelStyle]:
    """Return the style of each layer that a plan of transformers names, by the layer's path.

    A name is of a layer, whose weights it divides as well, or of a weight; ``*`` stands for a number. Names that
    nothing has are left out, as by transformers.

    Raises:
        MembenchError: there is no such style, or a weight of two layers is divided for one of them alone.
    """
    if unknown := sorted(set(named.values()) - STYLES.keys()):
        raise MembenchError(
            f"the module's plan has the style {unknown[0]!r}, which is not one of {', '.join(STYLES)}; pass "
            "tensor_parallel with styles of torch.distributed.tensor.parallel"
        )
    _check_tied(module, named)
    plan: dict[str, ParallelStyle] = {}
    for path, layer in module.named_modules():
        own = named.get(_generic(path))
        weights = {
            name: STYLES[style]
            for name, _ in layer.named_parameters(recurse=False)
            if (style := named.get(_generic(f"{path}.{name}"), own)) is not None
        }
        if own is not None and (of_torch := _of_torch(module, path, layer, STYLES[own])) is not None:
            plan[path] = of_torch
            continue
        if own is not None or weights:
            plan[path] = _OnParts(STYLES[own or "replicate"], weights, _rotated(module))
    return plan


def _check_tied(module: nn.Module, named: Mapping[str, str]) -> None:
    tied: dict[int, dict[str, bool]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        style = named.get(_generic(name), named.get(_generic(name.rpartition(".")[0]), "replicate"))
        tied.setdefault(id(weight), {})[name] = STYLES[style].matrix is not None
    for names in tied.values():
        if len(set(names.values())) > 1:
            divided, whole = (
                next(name for name, is_divided in names.items() if is_divided is each) for each in (True, False)
            )
            raise MembenchError(
                f"the module's plan divides {divided}, and not {whole}, which is the same weight; make the module "
                "without tied weights, or pass tensor_parallel"
            )


def _generic(name: str) -> str:
    """Return a name with ``*`` in the place of the numbers of layers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _rotated(module: nn.Module) -> int:
    """Return the rotated features of a head's key, which all heads of multi-head latent attention share."""
    config: Any = getattr(module, "config", None)
    text = getattr(config, "get_text_config", lambda: config)()
    return getattr(text, "qk_rope_head_dim", None) or 0


def _of_torch(module: nn.Module, path: str, layer: nn.Module, style: Style) -> ParallelStyle | None:
    """Return torch's style with the same effect on a linear layer or an embedding; None: there is none."""
    if not isinstance(layer, nn.Linear | nn.Embedding) or next(layer.children(), None) is not None:
        return None  # torch's would take the weights of layers within for its own
    whole = Replicate()
    if style.sequence:
        return SequenceParallel(use_local_output=True)
    if style.matrix is None or style.packed > 1:
        return None
    if isinstance(layer, nn.Embedding):
        by_rows = style.matrix == -2
        return RowwiseParallel(input_layouts=whole) if by_rows else ColwiseParallel(output_layouts=whole)
    if style.matrix == -1:
        return _Columns(input_layouts=whole if style.splits else Shard(-1))
    if style.gathers:
        return ColwiseParallel(output_layouts=whole)
    return _Rows(path, module.get_submodule(path.rpartition(".")[0]))


class _Rows(ColwiseParallel):
    """A linear layer whose weight is divided by rows, which are features of whole heads if its attention has heads."""

    def __init__(self, path: str, owner: nn.Module) -> None:
        super().__init__()
        self._path, self._head_features = path, getattr(owner, "head_dim", None)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        features, per_head = getattr(module, "out_features", 0), self._head_features
        if isinstance(per_head, int) and features % per_head == 0 and features // per_head % device_mesh.size():
            heads = features // per_head
            raise MembenchError(
                f"the {heads} {'head' if heads == 1 else 'heads'} of {self._path} are not divided evenly over the "
                f"{device_mesh.size()} ranks; choose a divisor, or another plan as tensor_parallel"
            )
        return super()._apply(module, device_mesh)


class _Columns(RowwiseParallel):
    """A linear layer whose weight is divided by columns, of which the last rank may have fewer."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        features = getattr(module, "in_features", 0)
        if features % device_mesh.size() and self.input_layouts == (Shard(-1),):
            module.register_forward_pre_hook(partial(_with_all_features, device_mesh, features))
        return super()._apply(module, device_mesh)


def _with_all_features(mesh: DeviceMesh, features: int, layer: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return _parts_of(inputs[0], mesh, features), *inputs[1:]


def _parts_of(part: Tensor, mesh: DeviceMesh, features: int) -> DTensor:
    """Return a tensor of which this rank has a part, along the last dimension."""
    shape = torch.Size((*part.shape[:-1], features))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, mesh, [Shard(part.dim() - 1)], run_check=False, shape=shape, stride=stride)


class _OnParts(ParallelStyle):
    """A module that runs on local tensors, with its parts of weights.

    Args:
        weights: styles of its own weights, by name.
        rotated: see `Style.sums_rotated`.
    """

    def __init__(self, style: Style, weights: Mapping[str, Style], rotated: int) -> None:
        super().__init__()
        self._style, self._weights, self._rotated = style, weights, rotated

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, style in self._weights.items():
            weight = module.get_parameter(name)
            module.register_parameter(
                name, nn.Parameter(_divided(name, weight.detach(), style, device_mesh), weight.requires_grad)
            )
        vars(module)["forward"] = partial(self._run, module, module.forward, device_mesh)
        return module

    def _run(self, module: nn.Module, forward: Callable[..., Any], mesh: DeviceMesh, *args: Any, **kwargs: Any) -> Any:
        style = self._style
        given = list(args)
        for place in style.sums_gradients:
            if place < len(given):
                given[place] = _with_summed_gradient(given[place], mesh)
        if style.shares:
            given[0] = given[0] / mesh.size()
        if style.splits:
            given[0] = _replaced(given[0], mesh, Replicate(), Shard(given[0].dim() - 1))
        with _local_weights(module, summed=style.sums_weights):
            output = forward(*given, **kwargs)
        several = isinstance(output, tuple)
        first = output[0] if several else output
        if style.sums_output and first is not None:
            first = _replaced(first, mesh, Partial(), Replicate())
        if style.gathers:
            first = _replaced(first, mesh, Shard(first.dim() - 1), Replicate())
        if style.sums_rotated and self._rotated:
            own, rotated = first.split([first.shape[-1] - self._rotated, self._rotated], dim=-1)
            first = torch.cat([own, _with_summed_gradient(rotated, mesh)], dim=-1)
        return (first, *output[1:]) if several else first


def _divided(name: str, weight: Tensor, style: Style, mesh: DeviceMesh) -> DTensor:
    """Return this rank's part of a weight."""
    dimension = style.matrix if weight.dim() > 1 else style.vector
    if dimension is None or (name == "bias" and not style.bias):
        return distribute_tensor(weight, mesh, [Replicate()], src_data_rank=None)
    dimension += weight.dim()
    if style.packed == 1 or weight.dim() == 1:
        return distribute_tensor(weight, mesh, [Shard(dimension)], src_data_rank=None)
    rank, ranks = mesh.get_local_rank(), mesh.size()
    parts = [each.tensor_split(ranks, dimension)[rank] for each in weight.chunk(style.packed, dimension)]
    return DTensor.from_local(torch.cat(parts, dimension), mesh, [Shard(dimension)], run_check=False)


@contextmanager
def _local_weights(module: nn.Module, *, summed: bool) -> Iterator[None]:
    """Let a module's own weights be this rank's parts within a block.

    Args:
        summed: their gradients are added up over ranks.
    """
    _, weights, _ = module_members(module)
    before = {name: weight for name, weight in weights.items() if isinstance(weight, DTensor)}
    placements = [Partial()] if summed else None
    weights |= {name: weight.to_local(grad_placements=placements) for name, weight in before.items()}
    try:
        yield
    finally:
        weights |= before


def _with_summed_gradient(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return a tensor that all ranks have, whose gradient is added up over them."""
    same = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    local: Tensor = same.to_local(grad_placements=[Partial()])
    return local


def _replaced(tensor: Tensor, mesh: DeviceMesh, now: Placement, then: Placement) -> Tensor:
    """Return this rank's part of a tensor, of which it has one by other placements."""
    local: Tensor = DTensor.from_local(tensor, mesh, [now], run_check=False).redistribute(placements=[then]).to_local()
    return local
