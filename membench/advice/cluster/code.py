"""The code that sets a combination: calls of torch, and the options of pytorch/torchtitan.

Tensor parallelism is `parallelize_module` with the plan of the model, context parallelism `context_parallel`, sharding
FSDP2, a pipeline the schedule of torch.distributed.pipelining: its manual frontend, in which a stage is the model
without the blocks of the others. For expert parallelism torch has no style of its own, so that the program's is named.

Names of options, and their defaults, are those of torchtitan 0.2.2 (torchtitan/config/job_config.py).
"""

from collections.abc import Iterator, Mapping

from membench.advice.cluster.advice import BLOCK_BY_BLOCK, ClusterAdvice
from membench.advice.cluster.combinations import Combination
from membench.advice.device.text import environment
from membench.core.step.pipeline import PIPELINED, PipelineSchedule
from membench.core.step.sharding import REPLICATED, SHARDED
from membench.models.checkpointing import Checkpointing
from membench.steps.parallel.context_parallel import AXIS as CONTEXT
from membench.steps.parallel.expert_parallel import AXIS as EXPERTS
from membench.steps.parallel.ranks import AXES
from membench.steps.parallel.tensor_parallel import AXIS as TENSOR

TORCHTITAN = "0.2.2"
"""The release whose options are named."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_DEGREES = {CONTEXT: "context_parallel_degree", EXPERTS: "expert_parallel_degree", TENSOR: "tensor_parallel_degree"}
_AUTOCAST = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}


def program(advice: ClusterAdvice, combination: Combination) -> list[str]:
    """Return the lines that set a combination, for a program that has ``model`` and trains it.

    The model is on the meta device or a CPU; ``criterion`` and ``batches`` are the program's.
    """
    return [
        *environment(str(advice.cluster.profile.allocator)),
        *_imports(combination),
        "",
        *_mesh(combination),
        *_tensor(combination),
        *_experts(combination),
        *_stage(advice, combination),
        *_checkpointing(advice, combination),
        *_compiled(advice),
        *_sharded(advice, combination),
        *_schedule(combination),
        *_step(advice, combination),
    ]


def _imports(combination: Combination) -> Iterator[str]:
    yield "import torch"
    if combination.checkpointing is Checkpointing.SELECTIVE:
        yield "from collections import defaultdict"
        yield "from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts"
    if combination.checkpointing is not Checkpointing.NONE:
        yield "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
    yield "from torch.distributed.device_mesh import init_device_mesh"
    if combination.shards > 1:
        yield "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard"
    elif REPLICATED in combination.parallel:
        yield "from torch.nn.parallel import DistributedDataParallel"
    if combination.stages > 1:
        yield "from torch.distributed.pipelining import PipelineStage, Schedule1F1B"
    division = combination.division
    if division.experts > 1:
        yield "from torch.distributed.tensor import Shard"
    if division.context > 1:
        yield "from torch.distributed.tensor.experimental import context_parallel"
    if division.tensor > 1:
        yield "from torch.distributed.tensor.parallel import loss_parallel, parallelize_module"
    elif division.experts > 1:
        yield "from torch.distributed.tensor.parallel import parallelize_module"


_POLICY = """\
def contexts():  # keeps attention and every other product
    products, aten = defaultdict(int), torch.ops.aten
    kernels = (f"_scaled_dot_product_{kernel}_attention" for kernel in ("cudnn", "flash", "efficient"))
    attention = [getattr(aten, kernel).default for kernel in kernels]

    def policy(context, operator, *args, **kwargs):
        kept = operator in attention
        if operator in (aten.mm.default, aten.addmm.default):
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
"""


def _checkpointing(advice: ClusterAdvice, combination: Combination) -> Iterator[str]:
    mode = combination.checkpointing
    if mode is Checkpointing.NONE:
        return
    if mode is Checkpointing.SELECTIVE:
        yield from _POLICY.splitlines()
        yield ""
    options = ", context_fn=contexts" if mode is Checkpointing.SELECTIVE else ""
    number = "number % 2" if mode is Checkpointing.EVERY_SECOND else ""
    yield f"blocks = {_names(advice)}"
    numbered = "enumerate(blocks, begins[stage])" if combination.stages > 1 else "enumerate(blocks)"
    yield f"for number, name in {numbered}:" if number else "for name in blocks:"
    if number:
        yield f"    if {number}:"
    indent = "        " if number else "    "
    yield f"{indent}model.set_submodule(name, checkpoint_wrapper(model.get_submodule(name){options}))"
    yield ""


def _compiled(advice: ClusterAdvice) -> Iterator[str]:
    if advice.compiled == BLOCK_BY_BLOCK:
        yield f"for name in {_names(advice)}:"
        yield "    model.get_submodule(name).compile()"


def _names(advice: ClusterAdvice) -> str:
    classes = ", ".join(map(repr, advice.classes))
    return f"[name for name, each in model.named_modules() if type(each).__name__ in {{{classes}}}]"


def _mesh(combination: Combination) -> Iterator[str]:
    yield f"mesh = {_init(_axes(combination))}"
    division, sizes = combination.division, combination.parallel
    if division.context > 1:
        yield (
            f'sequences = {_init(sizes)}["{CONTEXT}"]  '
            f"# of the same GPUs, which have weights in shards over {SHARDED} of mesh"
        )
    if division.experts > 1:
        with_shards = {axis: sizes.get(axis, 1) for axis in AXES if axis in sizes or axis == SHARDED}
        yield f"experts = {_init(with_shards)}  # of the same GPUs"


def _init(sizes: Mapping[str, int]) -> str:
    names = ", ".join(f'"{name}"' for name in sizes)
    shape = ", ".join(map(str, sizes.values()))
    comma = "," if len(sizes) == 1 else ""
    return f'init_device_mesh("cuda", ({shape}{comma}), mesh_dim_names=({names}{comma}))'


def _axes(combination: Combination) -> dict[str, int]:
    """Return the sizes of the axes of the mesh in which one axis is that of all shards."""
    sizes = dict(combination.axes) | {SHARDED: combination.shards}
    named = {axis: sizes[axis] for axis in AXES if sizes.get(axis, 1) > 1 and axis not in (CONTEXT, EXPERTS)}
    return named or dict(combination.axes[-1:])


def _tensor(combination: Combination) -> Iterator[str]:
    if combination.division.tensor > 1:
        yield (
            "# plan: model.tensor_parallel_plan(); transformers' networks: its apply_tensor_parallelism, "
            "by model.tp_plan, in its place"
        )
        yield f'parallelize_module(model, mesh["{TENSOR}"], plan)'


def _experts(combination: Combination) -> Iterator[str]:
    if combination.division.experts > 1:
        yield (
            "# expert_parallel: a ParallelStyle that divides experts and sends tokens to them, "
            "such as torchtitan's ExpertParallel"
        )
        yield (
            "mixtures = [name for name, each in model.named_modules() if any(len(weight.shape) == 3 for weight in "
            "each.parameters(recurse=False))]"
        )
        yield "for name in mixtures:"
        yield f'    parallelize_module(model.get_submodule(name), experts["{EXPERTS}"], expert_parallel)'


def _stage(advice: ClusterAdvice, combination: Combination) -> Iterator[str]:
    """Yield what leaves a rank its stage's blocks; the ends keep what is before and behind the blocks."""
    if combination.stages == 1:
        return
    blocks = advice.blocks
    begins = [0, *(blocks.index(name) for name in advice.begins[combination.stages]), len(blocks)]
    yield f"blocks = {_names(advice)}"
    yield f"begins = {begins}  # the first block of each stage"
    yield f'stage = mesh["{PIPELINED}"].get_local_rank()'
    yield "for number, name in enumerate(blocks):"
    yield "    if not begins[stage] <= number < begins[stage + 1]:"
    yield "        model.set_submodule(name, torch.nn.Identity())"
    yield (
        "# so too the embedding but in the first stage, last norm and head but in the last; "
        "forward then takes hidden states"
    )


def _sharded(advice: ClusterAdvice, combination: Combination) -> Iterator[str]:
    named = _axes(combination)
    axes = [f'"{axis}"' for axis in (REPLICATED, SHARDED) if named.get(axis, 1) > 1]
    mesh = "mesh" if len(axes) == len(named) else f"mesh[{', '.join(axes)}]"
    if combination.shards == 1:
        if axes:
            yield f'model = DistributedDataParallel(model.to("cuda"), device_mesh={mesh})'
        return
    if combination.checkpointing is Checkpointing.NONE or combination.stages > 1:
        yield f"blocks = {_names(advice)}"
    yield f"policy = MixedPrecisionPolicy({_policy(advice)})"
    reshard = f"reshard_after_forward={combination.reshard_after_forward}"
    if combination.division.experts > 1:
        yield from _sharded_experts(combination, reshard)
    yield "for name in blocks:"
    yield f"    fully_shard(model.get_submodule(name), mesh={mesh}, {reshard}, mp_policy=policy)"
    yield f"fully_shard(model, mesh={mesh}, reshard_after_forward=False, mp_policy=policy)"


def _sharded_experts(combination: Combination, reshard: str) -> Iterator[str]:
    axes = [f'"{axis}"' for axis in (REPLICATED, SHARDED) if axis in combination.parallel or axis == SHARDED]
    ranks = combination.shards * combination.parallel.get(REPLICATED, 1)
    yield "for name in mixtures:"
    yield f"    mixture, by = model.get_submodule(name), lambda weight: Shard(int(len(weight) < {combination.shards}))"
    yield (
        f"    fully_shard(mixture, mesh=experts[{', '.join(axes)}], {reshard}, shard_placement_fn=by, mp_policy=policy)"
    )
    yield (
        f"    mixture.set_gradient_divide_factor({ranks})  # gradients are means over all GPUs that have samples of "
        "their own"
    )


def _schedule(combination: Combination) -> Iterator[str]:
    if combination.stages > 1:
        group = f'mesh.get_group("{PIPELINED}")'
        yield f'part = PipelineStage(model, stage, {combination.stages}, torch.device("cuda"), group={group})'
        yield f"schedule = Schedule1F1B(part, n_microbatches={combination.accumulate}, loss_fn=criterion)"


def _policy(advice: ClusterAdvice) -> str:
    computed = _DTYPES.get(advice.precision or "")
    options = {"param_dtype": computed, "reduce_dtype": advice.reduce_dtype}
    return ", ".join(f"{name}=torch.{dtype}" for name, dtype in options.items() if dtype)


def _step(advice: ClusterAdvice, combination: Combination) -> Iterator[str]:
    """Yield the loop of a step, where it is more than one call of the model."""
    cast = _AUTOCAST.get(advice.precision or "")
    samples = combination.micro_batch * combination.accumulate
    if cast:
        yield f'# forward pass and loss: with torch.autocast("cuda", torch.{cast})'
    if combination.division.context > 1:
        yield (
            "# each pass of a micro-batch: with context_parallel(sequences, buffers=[inputs, targets], "
            "buffer_seq_dims=[1, 1]),"
        )
        yield "# positions, and tables by position, among the buffers"
    if combination.division.tensor > 1:
        yield "# loss and backward pass: with loss_parallel(), where the plan leaves logits in parts"
    if combination.stages > 1:
        yield (
            "# a step: schedule.step(inputs) in the first stage, schedule.step(target=targets) in the last, of "
            f"{samples} samples"
        )
    elif combination.accumulate > 1:
        yield f"# a step: {combination.accumulate} micro-batches of {combination.micro_batch}"
        loss = f"criterion(model(inputs), targets) / {combination.accumulate}"
        yield f"# for each: ({loss}).backward(); then optimizer.step()"


def torchtitan(advice: ClusterAdvice, combination: Combination) -> list[str]:
    """Return torchtitan's options for a combination; empty: it has none for this precision, or for these axes.

    Options that have torchtitan's default are left out, but for those of the mesh and of checkpointing.
    """
    precisions = {None: "float32", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16"}
    if advice.precision not in precisions or advice.reduce_dtype not in (None, "float32"):
        return []
    is_cut, division = combination.stages > 1, combination.division
    of_pipeline = {
        "parallelism.pipeline_parallel_degree": combination.stages,
        "parallelism.pipeline_parallel_schedule": str(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD),
        "parallelism.pipeline_parallel_microbatch_size": combination.micro_batch,
    }
    options = {
        "training.local_batch_size": combination.micro_batch * (combination.accumulate if is_cut else 1),
        "training.global_batch_size": combination.global_batch,
        "training.seq_len": advice.tokens,
        "training.mixed_precision_param": precisions[advice.precision],
        "parallelism.data_parallel_replicate_degree": combination.parallel.get(REPLICATED, 1),
        "parallelism.data_parallel_shard_degree": combination.shards // division.context,
        "parallelism.fsdp_reshard_after_forward": "default" if combination.reshard_after_forward else "never",
        **{f"parallelism.{_DEGREES[axis]}": size for axis, size in division.axes.items()},
        **(of_pipeline if is_cut else {}),
        **_of_checkpointing(combination.checkpointing),
        "compile.components": "model" if advice.compiled == BLOCK_BY_BLOCK else None,
    }
    switches = [] if combination.checkpointing is Checkpointing.NONE else ["--activation_checkpoint.early_stop"]
    switches += ["--compile.enable"] * (advice.compiled == BLOCK_BY_BLOCK)
    named = [f"--{name} {value}" for name, value in options.items() if value is not None]
    return [*named, *switches]


def _of_checkpointing(mode: Checkpointing) -> dict[str, str]:
    name = "activation_checkpoint.mode"
    option = "activation_checkpoint.selective_ac_option"
    match mode:
        case Checkpointing.SELECTIVE:
            return {name: "selective", option: "op"}
        case Checkpointing.EVERY_SECOND:
            return {name: "selective", option: "2"}
        case _:
            return {name: str(mode)}
