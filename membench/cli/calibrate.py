"""Fits a framework's constants on its own rows of a paper's tables.

    python -m membench.cli.calibrate framework=caffe device=k40m

Reads what Layrub's paper measured of that framework itself (Table 5: seconds of 20 iterations; Table 6: runtime memory,
which it has of Caffe alone), and no row of any other system. Prints every residual, and writes
``conf/framework/<framework>.yaml``, the same bytes each time.

`rows` reads the paper's numbers, `times` and `memory` fit them, `subjects` says what is fitted for each framework.

    python -m membench.cli.calibrate device=cuda

measures this machine's GPU instead and writes ``conf/device/<gpu>.yaml``.
"""

import sys
from collections.abc import Sequence

from membench.core import configuration
from membench.core.configuration import CONF_DIRECTORY
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.files import complaint, write_whole


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        settings = parse(arguments)
        if settings["device"] == "cuda":
            _measure_gpu()
        else:
            _fit(settings["framework"], configuration.load("device", settings["device"]))
    except (MembenchError, OSError) as error:
        print(f"membench.calibrate: {complaint(error)}", file=sys.stderr)
        return 2
    return 0


def parse(arguments: Sequence[str]) -> dict[str, str]:
    """Return what the arguments, ``name=value`` each, say of framework and device.

    Raises:
        MembenchError: an argument is no setting.
    """
    settings = {"framework": "caffe", "device": "k40m"}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        if key not in settings or not separator:
            raise MembenchError(f"{argument!r} is no setting; write framework=caffe device=k40m")
        settings[key] = value
    return settings


def _measure_gpu() -> None:
    """Measure this machine's GPU and write ``conf/device/<gpu>.yaml``.

    Raises:
        MembenchError: there is no GPU.
    """
    # torch takes seconds; a wrong word should not
    from membench.backends.real import real_device
    from membench.profiling.rates import device_yaml, measure_device
    from membench.sweep.provenance import device_facts

    profile, link = measure_device(real_device("cuda"))
    target = CONF_DIRECTORY / "device" / f"{profile.name}.yaml"
    write_whole(target, device_yaml(profile, link, device_facts("cuda")))
    print(f"{profile}\n{link}\nwrote {target}")


def _fit(framework: str, device: DeviceProfile) -> None:
    """Fit a framework, print the residuals and write ``conf/framework/<framework>.yaml``."""
    from membench.papers.calibrate.fit import fit
    from membench.papers.calibrate.rows import PAPER_DIRECTORY
    from membench.papers.calibrate.text import residual_lines, yaml_text

    result = fit(framework, PAPER_DIRECTORY / "reference.csv", device)
    print("\n".join(residual_lines(result)))
    target = CONF_DIRECTORY / "framework" / f"{framework}.yaml"
    write_whole(target, yaml_text(result, framework=framework, device=device.name))
    print(f"{result.efficiency}\nwrote {target}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
