"""A step's memory as a snapshot of PyTorch's, which https://pytorch.org/memory_viz and torch.cuda._memory_viz read.

The form is that of ``torch.cuda.memory._snapshot()``: segments with their blocks at the end, and a trace of events. The
events are what the step's schedules open and close, played on the simulated caching allocator with its default
settings. Each has a frame in place of a stack trace: the name of the block, and the layer that makes it.
"""

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from membench.core.files import naming
from membench.core.graph.schedule import Compute, Schedule
from membench.core.graph.task_graph import ARGUMENT_ROLES, Block, TaskGraph
from membench.pictures.observed_step import ObservedStep, RepeatedRun
from membench.planning.memory.caching_allocator import Piece
from membench.planning.memory.holders import FRAMEWORK, UNUSED, WORKSPACE, holder_of
from membench.planning.memory.segment_allocator import SegmentAllocator

_FIRST_ADDRESS = 0x7F0000000000
_US_PER_S = 1e6


def snapshot(step: ObservedStep) -> dict[str, Any]:
    """Return the snapshot of the end of a step, with the events of all its runs."""
    player = _Player()
    runs = [run for run in step.runs for _ in range(run.count)]
    for run, start_s in zip(runs, step.starts_s, strict=True):
        player.play(run, start_s)
    return {
        "segments": list(player.segments()),
        "device_traces": [player.events],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }


def save_snapshot(step: ObservedStep, path: Path) -> None:
    """Write the snapshot as a file that PyTorch's viewers open."""
    with naming(path):
        path.write_bytes(pickle.dumps(snapshot(step), protocol=4))


class _Player:
    """Plays runs on an allocator.

    Attributes:
        events: the trace so far.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._allocator = SegmentAllocator()
        self._time_us = 0
        self._used: dict[int, dict[str, Any]] = {}  # the event that made what is in use, by address
        self._kept: dict[tuple[str, str], int] = {}  # addresses of what outlives a run, by name and role

    def play(self, run: RepeatedRun, start_s: float) -> None:
        """Play a run that begins then."""
        graph, held_bytes = run.schedule.graph, run.schedule.space_changes.held_bytes
        self._time_us = max(self._time_us, round(start_s * _US_PER_S))
        if graph.overhead_bytes and (FRAMEWORK, "") not in self._kept:
            self._kept[FRAMEWORK, ""] = self.allocate(graph.overhead_bytes, FRAMEWORK, "")
        addresses = self._before(run)
        starts_s = {span.instruction: span.start_s for span in run.timeline.spans}
        changes, held = _changes(run.schedule), _Held(self)
        for index, instruction in enumerate(run.schedule.instructions):
            held.become(int(held_bytes[index]))
            if not isinstance(instruction, Compute):
                self._change(changes.get(index, ()), addresses, graph)
                continue
            self._time_us = max(self._time_us, round((start_s + starts_s.get(index, 0.0)) * _US_PER_S))
            self._change(changes.get(index, ()), addresses, graph)
            task = graph.tasks[instruction.task]
            if task.workspace_bytes:
                self.free(self.allocate(task.workspace_bytes, f"{WORKSPACE} of {task.name}", graph.layers[task.layer]))
        held.become(0)
        for block in (graph.blocks[index] for index in addresses if not graph.blocks[index].is_external):
            self._keep(block, addresses[block.index])

    def segments(self) -> Iterator[dict[str, Any]]:
        """Yield what the allocator has reserved, with the blocks in it."""
        pieces = self._allocator.pieces
        for first in (piece for piece in pieces if piece.before is None):
            inside = [first]
            while inside[-1].behind:
                inside.append(inside[-1].behind)
            used = [self._used[piece.address]["size"] for piece in inside if not piece.is_free]
            size_bytes = sum(piece.size_bytes for piece in inside if not piece.is_free)
            yield {
                "device": 0,
                "address": _FIRST_ADDRESS + first.address,
                "total_size": sum(piece.size_bytes for piece in inside),
                "allocated_size": size_bytes,
                "active_size": size_bytes,
                "requested_size": sum(used),
                "stream": 0,
                "segment_type": "small" if first.pool.is_small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [self._block(piece) for piece in inside],
            }

    def _block(self, piece: Piece) -> dict[str, Any]:
        made = {} if piece.is_free else self._used[piece.address]
        return {
            "address": _FIRST_ADDRESS + piece.address,
            "size": piece.size_bytes,
            "requested_size": made.get("size", 0),
            "state": "inactive" if piece.is_free else "active_allocated",
            "frames": made.get("frames", []),
        }

    def _before(self, run: RepeatedRun) -> dict[int, int]:
        """Return the addresses of what is there before a run, in place of the last run's arguments."""
        for key in [key for key in self._kept if key[1] in ARGUMENT_ROLES]:
            self.free(self._kept.pop(key))
        graph, addresses = run.schedule.graph, dict[int, int]()
        for block in (each for each in graph.blocks if each.is_external and each.size_bytes):
            if (key := (block.name, str(block.role))) not in self._kept:
                self._kept[key] = self.allocate(block.size_bytes, *_named(block, graph))
            addresses[block.index] = self._kept[key]
        return addresses

    def _keep(self, block: Block, address: int) -> None:
        """Hold a result in place of the last run's."""
        if (key := (block.name, str(block.role))) in self._kept:
            self.free(self._kept[key])
        self._kept[key] = address

    def _change(self, changes: Iterable[tuple[int, int]], addresses: dict[int, int], graph: TaskGraph) -> None:
        for block, size_bytes in changes:
            if size_bytes < 0:
                self.free(addresses.pop(block))
                self._kept = {key: kept for key, kept in self._kept.items() if kept in self._used}
            elif size_bytes:
                addresses[block] = self.allocate(size_bytes, *_named(graph.blocks[block], graph))

    def allocate(self, size_bytes: int, name: str, layer: str) -> int:
        before_bytes = self._allocator.reserved_bytes
        address = self._allocator.allocate(size_bytes)
        if grown_bytes := self._allocator.reserved_bytes - before_bytes:
            self._add("segment_alloc", address, grown_bytes, [])
        self._used[address] = self._add("alloc", address, size_bytes, [{"name": name, "filename": layer, "line": 0}])
        return address

    def free(self, address: int) -> None:
        made = self._used.pop(address)
        for action in ("free_requested", "free_completed"):
            self._add(action, address, made["size"], made["frames"])
        self._allocator.free(address)

    def _add(self, action: str, address: int, size_bytes: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
        event = {
            "action": action,
            "addr": _FIRST_ADDRESS + address,
            "size": size_bytes,
            "stream": 0,
            "time_us": self._time_us,
            "frames": frames,
        }
        self.events.append(event)
        return event


class _Held:
    """The unused memory of a pool, as one block."""

    def __init__(self, player: _Player) -> None:
        self._player = player
        self._size_bytes, self._address = 0, 0

    def become(self, size_bytes: int) -> None:
        if size_bytes == self._size_bytes:
            return
        if self._size_bytes:
            self._player.free(self._address)
        self._address = self._player.allocate(size_bytes, UNUSED, "") if size_bytes else 0
        self._size_bytes = size_bytes


def _changes(schedule: Schedule) -> dict[int, list[tuple[int, int]]]:
    """Return the blocks whose space an instruction opens or closes, by its position; see `SpaceChanges`."""
    found: dict[int, list[tuple[int, int]]] = {}
    changes = schedule.space_changes
    columns = (changes.instructions.tolist(), changes.blocks.tolist(), changes.size_bytes.tolist())
    for index, block, size_bytes in zip(*columns, strict=True):
        found.setdefault(index, []).append((block, size_bytes))
    return found


def _named(block: Block, graph: TaskGraph) -> tuple[str, str]:
    """Return what a block is, and the layer that makes it."""
    return f"{block.name} ({holder_of(block.role)})", graph.layers[block.layer] if block.layer >= 0 else ""
