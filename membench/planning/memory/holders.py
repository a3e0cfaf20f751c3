"""Holders of device memory: the categories that a picture shows and that the parts of a prediction are."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from membench.core.graph.call import Value
from membench.core.graph.schedule import Hold, Schedule
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.opened import objects_in
from membench.planning.memory.liveness import live_bytes, residencies, spaces, workspace_bytes

_HOLDERS: Mapping[Role, str] = {
    Role.WEIGHT: "weights",
    Role.GATHERED: "gathered weights",
    Role.BUFFER: "weights",
    Role.CONSTANT: "weights",
    Role.INPUT: "inputs",
    Role.LABEL: "inputs",
    Role.GIVEN_UP: "inputs",
    Role.ACTIVATION: "activations",
    Role.LOSS: "activations",
    Role.HELD: str(Role.OUTPUT),
    Role.ACCUMULATED: "weight gradients",
    Role.INTERNAL: "layers' internals",
    Role.GRADIENT: "gradients",
    Role.WEIGHT_GRADIENT: "weight gradients",
    Role.APPLIED_GRADIENT: "weight gradients",
    Role.PENDING_GRADIENT: "weight gradients",
    Role.PARTIAL_GRADIENT: "weight gradients",
}
FRAMEWORK, WORKSPACE, UNUSED = "framework", "workspace", "unused"


def holder_of(role: Role) -> str:
    """Return the name of the holder of blocks of a role."""
    return _HOLDERS.get(role, str(role))


def held_bytes(schedule: Schedule) -> dict[str, NDArray[np.int64]]:
    """Return the bytes of each holder during each instruction; together they are `live_bytes`."""
    graph = schedule.graph
    roles: dict[str, set[Role]] = {}
    present = {block.role for block in graph.blocks}
    for role in (each for each in Role if each in present):
        roles.setdefault(holder_of(role), set()).add(role)
    of_blocks = {name: np.array(live_bytes(schedule, frozenset(held))) for name, held in roles.items()}
    workspace = np.array(workspace_bytes(schedule))
    framework = np.full(len(schedule), graph.overhead_bytes)
    unused = np.array(live_bytes(schedule)) - workspace - framework - sum(of_blocks.values())
    return {FRAMEWORK: framework, **of_blocks, WORKSPACE: workspace, UNUSED: unused}


def held_at_peak_bytes(schedule: Schedule) -> dict[str, int]:
    """Return what each holder has at the schedule's first peak; together they are its peak.

    Holders of nothing are left out.
    """
    graph, live = schedule.graph, live_bytes(schedule)
    peak = live.index(max(live)) if live else -1  # of a step without operators, what is there before it
    so_far = schedule.instructions[: peak + 1]
    held = dict.fromkeys((FRAMEWORK, *map(holder_of, Role), WORKSPACE, UNUSED), 0)
    held[FRAMEWORK] = graph.overhead_bytes
    for block, size_bytes in spaces(schedule, until=peak + 1).items():
        held[holder_of(graph.blocks[block].role)] += size_bytes
    held[UNUSED] = next((item.size_bytes for item in reversed(so_far) if isinstance(item, Hold)), 0)
    held[WORKSPACE] = live[peak] - sum(held.values()) if live else 0
    return {name: size_bytes for name, size_bytes in held.items() if size_bytes}


def activations_at_peak_bytes(schedule: Schedule) -> dict[str, int]:
    """Return the activations at the schedule's first peak by the layer that makes them, the largest first."""
    graph, resident = schedule.graph, dict[int, bool]()
    for block_index, is_resident in residencies(schedule, until=_first_peak(schedule) + 1):
        resident[block_index] = is_resident
    found: Counter[str] = Counter()
    for block in (graph.blocks[index] for index, is_resident in resident.items() if is_resident):
        if holder_of(block.role) == _HOLDERS[Role.ACTIVATION]:
            found[graph.layers[block.layer] if block.layer >= 0 else block.name] += block.size_bytes
    return dict(found.most_common())


def returned_in_objects_bytes(graph: TaskGraph) -> int:
    """Return the bytes of tensors in objects that a step of inference returns, such as a cache of keys and values."""
    values = tree_leaves(objects_in(graph.output))
    return graph.size_bytes({value.block for value in values if isinstance(value, Value)})


def _first_peak(schedule: Schedule) -> int:
    live = live_bytes(schedule)
    return int(np.argmax(live)) if live else -1
