"""`cluster=dgx_h100` on a command line: the name of a cluster, and the device that it brings along."""

from collections.abc import Mapping

from membench.core import configuration
from membench.core.checks import choice


def read_cluster(given: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the cluster that options choose, and that of its own device; empty: it may have any.

    Args:
        given: texts of options by name, that of ``cluster`` among them.

    Raises:
        MembenchError: there is no such cluster.
    """
    name = choice(configuration.names("cluster"), "cluster", given["cluster"])
    return name, configuration.read("cluster", name).get("device") or ""
