"""Measures this machine's GPU and writes its file in ``conf/device``."""

from membench.configuration import CONF_DIRECTORY
from membench.cost.device_rates import device_yaml, measure_device
from membench.step import real_device
from membench.suite.provenance import device_facts


def calibrate_gpu() -> None:
    """Write ``conf/device/<gpu>.yaml``.

    Raises:
        MembenchError: there is no GPU.
    """
    profile, link = measure_device(real_device("cuda"))
    target = CONF_DIRECTORY / "device" / f"{profile.name}.yaml"
    target.write_text(device_yaml(profile, link, device_facts("cuda")))
    print(f"{profile}\n{link}\nwrote {target}")
