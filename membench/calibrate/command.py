"""The command: fits a framework, prints the residuals, writes its configuration; or measures a GPU."""

import sys
from collections.abc import Sequence

from membench import configuration
from membench.configuration import CONF_DIRECTORY
from membench.device import DeviceProfile
from membench.errors import MembenchError
from membench.files import complaint, write_whole


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(sys.modules[__package__ or ""].__doc__)
        return 0
    try:
        settings = _parse(arguments)
        if settings["device"] == "cuda":
            from membench.calibrate.gpu import calibrate_gpu  # torch takes seconds; a wrong word should not

            calibrate_gpu()
        else:
            _fit(settings["framework"], configuration.load("device", settings["device"]))
    except (MembenchError, OSError) as error:
        print(f"membench.calibrate: {complaint(error)}", file=sys.stderr)
        return 2
    return 0


def _fit(framework: str, device: DeviceProfile) -> None:
    """Fit a framework, print the residuals and write ``conf/framework/<framework>.yaml``."""
    from membench.calibrate.fit import fit
    from membench.calibrate.rows import PAPER_DIRECTORY
    from membench.calibrate.text import residual_lines, yaml_text

    result = fit(framework, PAPER_DIRECTORY / "reference.csv", device)
    print("\n".join(residual_lines(result)))
    target = CONF_DIRECTORY / "framework" / f"{framework}.yaml"
    write_whole(target, yaml_text(result, framework=framework, device=device.name))
    print(f"{result.efficiency}\nwrote {target}")


def _parse(arguments: Sequence[str]) -> dict[str, str]:
    settings = {"framework": "caffe", "device": "k40m"}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        if key not in settings or not separator:
            raise MembenchError(f"{argument!r} is no setting; write framework=caffe device=k40m")
        settings[key] = value
    return settings
