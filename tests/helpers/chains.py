"""A chain of layers without calls: each keeps a map for the backward pass, and has a gradient of the same size."""

from collections.abc import Sequence

from membench.core.task_graph import Block, Kind, Phase, Role, Task, TaskGraph

INPUT_BYTES = 7


def chain(map_bytes: Sequence[int]) -> TaskGraph:
    """Return the step of a chain whose layer number i has a map of that size.

    Forward, a layer reads the map before its own. Backward, it reads that map and its own map's gradient and creates the
    gradient of the map before; the last layer creates its own map's gradient first.
    """
    count = len(map_bytes)
    blocks = [Block(0, "input", INPUT_BYTES, Role.INPUT, -1)]
    for name, role in (("map", Role.ACTIVATION), ("gradient", Role.GRADIENT)):
        for layer, size_bytes in enumerate(map_bytes):
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
        before = (count + layer,) if layer else ()  # nobody asks for the gradient of the input
        add(layer, Phase.BACKWARD, (layer, 1 + count + layer), before)
    names = (*(f"layer{i}" for i in range(count)), "loss")
    return TaskGraph("chain", 1, tuple(blocks), tuple(tasks), names)
