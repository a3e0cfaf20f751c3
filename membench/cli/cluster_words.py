"""`cluster=dgx_h100` on a command line: the name of a cluster, and the device that it brings along."""

from collections.abc import Mapping

from membench.core import configuration
from membench.core.checks import choice
from membench.core.errors import MembenchError


def read_cluster(given: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the cluster that options choose, and that of its own device; empty: it may have any.

    Args:
        given: texts of options by name, that of ``cluster`` among them.

    Raises:
        MembenchError: there is no such cluster.
    """
    name = choice(configuration.names("cluster"), "cluster", given["cluster"])
    return name, configuration.read("cluster", name).get("device") or ""


def device_words(given: Mapping[str, str]) -> list[str]:
    """Return the words that choose the device of the cluster that options choose, where no other is allowed.

    Args:
        given: see `read_cluster`.

    Raises:
        MembenchError: another is given, or none, and the cluster may have any.
    """
    (cluster, own), device = read_cluster(given), given.get("device")
    if own and device not in (None, own):
        raise MembenchError(
            f"device={device}: the GPUs of cluster {cluster} are {own}; leave device out, or choose another cluster"
        )
    if not (own or device):
        raise MembenchError(f"cluster {cluster} may have any device; name it as well, as in device=h100")
    return [f"device={own or device}"]
