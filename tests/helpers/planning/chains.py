"""Chains of layers: three graphs that differ in what a test varies, sizes, kinds or depth."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from membench.capture.capture import capture
from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.step.workload import Workload

INPUT_BYTES = 7
ACTIVATION_BYTES = 100
"""Of each activation and gradient of `chain_of_kinds`."""
FEATURE_MAP_BYTES = 4 * 8 * 16 * 16 * 4
"""Of each activation and gradient of `chain_of_convolutions`: 4 images, 8 channels of 16x16, float32."""
ACTIVATION_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT})


def chain_of_sizes(activation_bytes: Sequence[int]) -> TaskGraph:
    """Return the step of a chain whose layer number i has an activation of that size.

    Forward, a layer reads the activation before its own. Backward, it reads that activation and the gradient of its own
    and creates the gradient of the activation before; the gradient of the last activation is created first.
    """
    count = len(activation_bytes)
    blocks = [Block(0, "input", INPUT_BYTES, Role.INPUT, -1)]
    for name, role in (("activation", Role.ACTIVATION), ("gradient", Role.GRADIENT)):
        for layer, size_bytes in enumerate(activation_bytes):
            blocks.append(Block(len(blocks), f"{name}{layer}", size_bytes, role, layer))
    tasks: list[Task] = []

    def add(layer: int, phase: Phase, reads: tuple[int, ...], creates: tuple[int, ...]) -> None:
        name = f"{phase.value}{layer}"
        tasks.append(Task(len(tasks), name, Kind.OTHER, phase, layer, reads, creates, creates))

    for layer in range(count):
        add(layer, Phase.FORWARD, (layer,), (layer + 1,))
    add(count, Phase.LOSS, (count,), ())
    add(count, Phase.BACKWARD, (count,), (2 * count,))
    for layer in reversed(range(count)):
        before = (count + layer,) if layer else ()  # the gradient of the input is not needed
        add(layer, Phase.BACKWARD, (layer, 1 + count + layer), before)
    names = (*(f"layer{i}" for i in range(count)), "loss")
    return TaskGraph("chain", 1, tuple(blocks), tuple(tasks), names)


def chain_of_kinds(*kinds: Kind) -> TaskGraph:
    """Layers of these kinds one after another; a layer's backward reads its input, save for ReLU in place."""
    geometry = Convolution(1, 1, 1, (5, 5), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1, 4)
    blocks: list[Block] = [Block(0, "images", ACTIVATION_BYTES, Role.INPUT, -1)]
    tasks: list[Task] = []
    inputs: list[int] = []

    def block(name: str, role: Role, layer: int, size_bytes: int = ACTIVATION_BYTES) -> int:
        blocks.append(Block(len(blocks), name, size_bytes, role, layer))
        return blocks[-1].index

    def task(name: str, kind: Kind, phase: Phase, layer: int, reads: list[int], writes: list[int]) -> None:
        created = tuple(b for b in writes if b not in reads)
        convolution = geometry if kind is Kind.CONVOLUTION else None
        tasks.append(
            Task(len(tasks), name, kind, phase, layer, tuple(reads), tuple(writes), created, convolution=convolution)
        )  # fmt: skip

    for layer, kind in enumerate(kinds):
        inputs.append(blocks[-1].index if layer else 0)
        in_place = kind is Kind.RELU
        output = inputs[-1] if in_place else block(f"activation{layer}", Role.ACTIVATION, layer)
        task(f"{kind}{layer}", kind, Phase.FORWARD, layer, [inputs[-1]], [output])
    last = blocks[-1].index
    loss = block("loss", Role.LOSS, len(kinds), 4)
    task("loss", Kind.LOSS, Phase.LOSS, len(kinds), [last], [loss])
    gradient = block("loss gradient", Role.GRADIENT, len(kinds))
    task("loss backward", Kind.LOSS, Phase.BACKWARD, len(kinds), [last], [gradient])
    for layer, kind in reversed(list(enumerate(kinds))):
        in_place = kind is Kind.RELU
        produced = gradient if in_place else block(f"gradient{layer}", Role.GRADIENT, layer)
        task(f"{kind}{layer} backward", kind, Phase.BACKWARD, layer, [inputs[layer], gradient], [produced])
        gradient = produced
    weight = block("weight gradient", Role.WEIGHT_GRADIENT, 0, 4)
    tasks[-1] = replace(tasks[-1], writes=(*tasks[-1].writes, weight), creates=(*tasks[-1].creates, weight))
    layers = tuple(map(str, range(len(kinds) + 1)))
    return TaskGraph("chain", 1, tuple(blocks), tuple(tasks), layers)


def chain_of_batch(count: int) -> TaskGraph:
    """A network whose activations grow with the number of images."""
    graph = chain_of_kinds(*[Kind.CONVOLUTION] * 6)
    blocks = tuple(replace(block, size_bytes=block.size_bytes * count) for block in graph.blocks)
    return replace(graph, blocks=blocks, batch_size=count)


def graph_of(module: nn.Module, channels: int, image_size: int) -> TaskGraph:
    batch = (torch.empty(4, channels, image_size, image_size),), (torch.empty(4, dtype=torch.int64),)
    return capture(Workload("net", module, nn.functional.cross_entropy, *batch)).graph


def chain_of_convolutions(depth: int, *, normalized: bool = False) -> TaskGraph:
    """Equal convolutions, or equal layers of convolution, batch norm and ReLU."""
    with torch.device("meta"):
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Conv2d(8, 8, 3, padding=1)]
            layers += [nn.BatchNorm2d(8), nn.ReLU()] if normalized else []
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
        return graph_of(nn.Sequential(*layers, *head), 8, 16)
