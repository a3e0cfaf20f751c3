"""The command: fits a framework, prints the residuals, writes its configuration; or measures a GPU."""

import sys

from membench import configuration
from membench.calibrate.fit import fit
from membench.calibrate.gpu import calibrate_gpu
from membench.calibrate.rows import PAPER_DIRECTORY
from membench.calibrate.text import residual_lines, yaml_text
from membench.configuration import CONF_DIRECTORY
from membench.device import DeviceProfile
from membench.errors import MembenchError


def main(arguments: list[str]) -> int:
    """Run the command; errors are one line."""
    try:
        settings = _parse(arguments)
        if settings["device"] == "cuda":
            calibrate_gpu()
            return 0
        device: DeviceProfile = configuration.load("device", settings["device"])
        result = fit(settings["framework"], PAPER_DIRECTORY / "reference.csv", device)
    except (MembenchError, OSError) as error:
        print(f"membench.calibrate: {error}", file=sys.stderr)
        return 1
    print("\n".join(residual_lines(result)))
    target = CONF_DIRECTORY / "framework" / f"{settings['framework']}.yaml"
    target.write_text(yaml_text(result, framework=settings["framework"], device=settings["device"]))
    print(f"{result.efficiency}\nwrote {target}")
    return 0


def _parse(arguments: list[str]) -> dict[str, str]:
    settings = {"framework": "caffe", "device": "k40m"}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        if key not in settings or not separator:
            raise MembenchError(f"{argument!r} is no setting; write framework=caffe device=k40m")
        settings[key] = value
    return settings
