"""Mesh: the devices of a cluster as a grid, along whose axes a model is sharded, replicated or cut."""

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod

from membench.core.checks import COUNT, NAME, check
from membench.core.errors import MembenchError, near
from membench.core.hardware.cluster import Cluster

BOTH = "+"
"""Between the names of axes of a group along all of them."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks that take part in one collective, and what they share with other groups of the same axis.

    Where groups are not all alike, because an axis does not divide the hosts evenly, each number is the largest of any.
    Hosts that one switch joins (`Cluster.hosts_per_switch`) count as one.

    Attributes:
        size: number of ranks.
        hosts: over which they are spread.
        per_host: ranks in one host.
        sharing: groups that use the network of one host at the same time, this one included; 0 if none leaves its host.
    """

    size: int
    hosts: int
    per_host: int
    sharing: int


@dataclass(frozen=True)
class Mesh:
    """A cluster whose ranks are a grid; rank 0 is the first device of the first host.

    Attributes:
        cluster: cluster of as many devices as the grid has places.
        axes: names and sizes from the outermost to the innermost, whose ranks are neighbours, as in torch's DeviceMesh.

    Raises:
        MembenchError: the product of the sizes is not the number of devices, a size is not a positive whole number, or
            a name occurs twice.
    """

    cluster: Cluster
    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name, size in self.axes:
            check(NAME, axis=name)
            check(COUNT, **{f"the size of axis {name}": size})
        if len(self.sizes) < len(self.axes):
            raise MembenchError(f"the axes {', '.join(name for name, _ in self.axes)} need different names")
        if (places := prod(self.sizes.values())) != self.cluster.devices:
            sizes = " x ".join(f"{name} {size}" for name, size in self.axes) or "no axis"
            raise MembenchError(
                f"{sizes} is for {places} devices, but the cluster has {self.cluster.devices} "
                f"({self.cluster.hosts} x {self.cluster.devices_per_host}); change an axis, or the number of hosts"
            )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis to number of ranks along it."""
        return dict(self.axes)

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """Return the ranks of each group along some axes: those that differ in their places on these axes only.

        Args:
            axes: by name; ``"fsdp+cp"`` is two.

        Raises:
            MembenchError: the mesh has no such axis.
        """
        axes = tuple(name for axis in axes for name in axis.split(BOTH))
        for axis in axes:
            if axis not in self.sizes:
                raise MembenchError(
                    f"the mesh has no axis {axis!r}, only {', '.join(self.sizes)}{near(axis, self.sizes)}"
                )
        members: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(product(*(range(size) for _, size in self.axes))):
            fixed = tuple(at for at, (name, _) in zip(place, self.axes, strict=True) if name not in axes)
            members.setdefault(fixed, []).append(rank)
        return [tuple(ranks) for ranks in members.values()]

    def places_in_hosts(self, axis: str) -> set[tuple[int, ...]]:
        """Return how many ranks of each place on an axis share a host, for each host that differs from the others.

        Args:
            axis: one that the mesh lacks has a single place, with all ranks.
        """
        per_host = self.cluster.devices_per_host
        places = [
            Counter(rank // per_host for rank in ranks)
            for ranks in self.groups(*(name for name in self.sizes if name != axis))
        ]
        return {tuple(ranks[host] for ranks in places) for host in range(self.cluster.hosts)}

    def group(self, *axes: str) -> RankGroup:
        """Return how the groups along some axes lie in the hosts.

        Raises:
            MembenchError: the mesh has no such axis.
        """
        return _group(self, axes)


@cache
def _group(mesh: Mesh, axes: tuple[str, ...]) -> RankGroup:
    """Return a mesh's group; asked once for every collective of a step, of up to thousands of ranks."""
    groups = mesh.groups(*axes)
    by_host = [Counter(rank // mesh.cluster.joined_devices for rank in ranks) for ranks in groups]
    leaving = Counter(host for ranks in by_host if len(ranks) > 1 for host in ranks)
    return RankGroup(
        size=len(groups[0]),
        hosts=max(map(len, by_host)),
        per_host=max(max(ranks.values()) for ranks in by_host),
        sharing=max(leaving.values(), default=0),
    )
