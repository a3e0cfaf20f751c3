"""Meshes: groups that partition the ranks, and where they lie."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.errors import MembenchError
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.mesh import Mesh, RankGroup

FOUR_HOSTS = Cluster(hosts=4, devices_per_host=8)
MESH = Mesh(FOUR_HOSTS, (("pp", 2), ("dp", 4), ("tp", 4)))


def test_a_group_knows_where_its_ranks_are_and_who_shares_their_network() -> None:
    assert MESH.group("tp") == RankGroup(size=4, hosts=1, per_host=4, sharing=0)
    assert MESH.group("dp") == RankGroup(size=4, hosts=2, per_host=2, sharing=4)
    assert MESH.group("pp") == RankGroup(size=2, hosts=2, per_host=1, sharing=8)
    assert MESH.group("pp", "dp") == RankGroup(size=8, hosts=4, per_host=2, sharing=4)
    assert MESH.group("pp", "dp", "tp") == RankGroup(size=32, hosts=4, per_host=8, sharing=1)


def test_ranks_of_the_innermost_axis_are_neighbours() -> None:
    assert MESH.groups("tp")[:2] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert MESH.groups("pp")[0] == (0, 16)


def test_groups_that_hosts_cut_unevenly_are_described_by_the_largest() -> None:
    mesh = Mesh(Cluster(hosts=3, devices_per_host=4), (("dp", 4), ("tp", 3)))
    assert mesh.groups("tp") == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]
    assert mesh.group("tp") == RankGroup(size=3, hosts=2, per_host=3, sharing=2)


def test_hosts_that_one_switch_joins_are_one() -> None:
    mesh = Mesh(Cluster(hosts=6, devices_per_host=4, hosts_per_switch=3), (("dp", 2), ("tp", 12)))
    assert mesh.group("tp") == RankGroup(size=12, hosts=1, per_host=12, sharing=0)
    assert mesh.group("dp") == RankGroup(size=2, hosts=2, per_host=1, sharing=12)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from((1, 2, 4)), st.data())
def test_groups_along_any_axes_partition_the_ranks(
    sizes: list[int], devices_per_host: int, data: st.DataObject
) -> None:
    sizes = [*sizes, devices_per_host]
    names = [f"axis{index}" for index in range(len(sizes))]
    cluster = Cluster(hosts=prod(sizes[:-1]), devices_per_host=devices_per_host)
    mesh = Mesh(cluster, tuple(zip(names, sizes, strict=True)))
    axes = data.draw(st.lists(st.sampled_from(names), unique=True))
    groups = mesh.groups(*axes)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(cluster.devices))
    group = mesh.group(*axes)
    assert {len(ranks) for ranks in groups} == {group.size}
    assert group.size == prod(mesh.sizes[axis] for axis in axes) == group.hosts * group.per_host
    assert group.sharing == (devices_per_host // group.per_host if group.hosts > 1 else 0)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((("dp", 3), ("tp", 8)), r"dp 3 x tp 8 is for 24 devices, but the cluster has 32 \(4 x 8\)"),
        ((), "no axis is for 1 devices, but the cluster has 32"),
        ((("dp", 4), ("dp", 8)), "the axes dp, dp need different names"),
        ((("dp", 0), ("tp", 8)), "the size of axis dp is a positive whole number, not 0"),
    ],
)
def test_a_mesh_that_the_cluster_does_not_fill_is_refused(axes: tuple[tuple[str, int], ...], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        Mesh(FOUR_HOSTS, axes)


def test_an_axis_that_the_mesh_has_not_is_refused() -> None:
    with pytest.raises(MembenchError, match="the mesh has no axis 'tpp', only pp, dp, tp; did you mean '"):
        MESH.group("tpp")


@given(data=st.data())
def test_each_rank_is_in_one_host_at_its_place_on_an_axis(data: st.DataObject) -> None:
    names = ("pp", "dp", "tp")
    sizes = data.draw(st.tuples(*(st.integers(1, 4) for _ in names)))
    devices = prod(sizes)
    per_host = data.draw(st.sampled_from([each for each in range(1, devices + 1) if devices % each == 0]))
    mesh = Mesh(Cluster(hosts=devices // per_host, devices_per_host=per_host), tuple(zip(names, sizes, strict=True)))
    found = mesh.places_in_hosts("pp")
    assert {sum(counts) for counts in found} == {per_host}
    followers = devices // sizes[0]
    wanted = set()
    for host in range(devices // per_host):
        places = [rank // followers for rank in range(host * per_host, (host + 1) * per_host)]
        wanted.add(tuple(places.count(place) for place in range(sizes[0])))
    assert found == wanted
    assert mesh.places_in_hosts("none") == {(per_host,)}
