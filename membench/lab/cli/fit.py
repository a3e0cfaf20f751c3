"""Fit constants: of a framework, on its own rows of a paper; of kernels, on published ones.

    membench fit framework=caffe device=k40m   writes conf/framework/<framework>.yaml, or that of --config-dir FOLDER
    membench fit codec                         prints the rate of EPMC's serial baseline
    membench fit waves                         prints Winograd's rate and the waves that fill a Kepler
    membench fit kernels                       writes the rates of PyTorch's kernels into conf/framework/pytorch.yaml

A fit reads what Layrub's paper measured of that framework (Table 5: seconds of 20 iterations; Table 6: runtime memory,
for Caffe alone, and of Layrub on ResNet-1517), and no other row; that of waves reads MXNet's published throughputs on a
K80, and that of kernels single ones on several cards and 40 of timm's published steps on an RTX 3090, which it lists
in experiments/validation/fitted.yaml.
Each prints every residual and writes the same bytes each time; that of kernels also prints the errors of single ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from membench.cli.words import FLAG, NameIn, read_options, refuse_flags, take_config_dir
from membench.core import configuration
from membench.core.configuration import CONF_DIRECTORY, ROOT, instantiate
from membench.core.errors import MembenchError
from membench.core.files import shown, write_whole
from membench.core.hardware.device import DeviceProfile


@dataclass(frozen=True)
class Options:
    """The constants to find.

    Attributes:
        framework: the name in ``conf/framework``.
        device: the name in ``conf/device`` that the paper's rows are of.
        codec: fit the rate of EPMC's serial baseline instead.
        waves: fit Winograd's rate and the waves that fill a Kepler instead.
        kernels: fit the rates of PyTorch's kernels instead.
        config_dir: the folder to write into; None: ``conf/``.
    """

    framework: Annotated[str, NameIn(("framework",))] = ""
    device: Annotated[str, NameIn(("device",))] = ""
    codec: Annotated[bool, FLAG] = False
    waves: Annotated[bool, FLAG] = False
    kernels: Annotated[bool, FLAG] = False
    config_dir: Annotated[Path | None, FLAG] = None


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    own, words = take_config_dir(words)
    refuse_flags(words)
    if words in (["codec"], ["waves"], ["kernels"]):
        return Options(codec="codec" in words, waves="waves" in words, kernels="kernels" in words)
    options = Options(**read_options(words, Options, own), config_dir=own)
    if not options.device or not options.framework:
        raise MembenchError(
            "name what to fit: `framework=caffe device=k40m`, `codec`, `waves` or `kernels`, each alone"
        )
    return options


def run(options: Options) -> int:
    """Fit, print what was found, and return the exit code."""
    if options.codec:
        from membench.lab.calibrate.codec import fit_codec

        print(fit_codec())
    elif options.waves:
        from membench.lab.calibrate.waves import fit_waves

        print(fit_waves())
    elif options.kernels:
        from membench.lab.calibrate.kernel_rates import fit_kernels

        print(fit_kernels(ROOT / "experiments" / "validation", CONF_DIRECTORY / "framework" / "pytorch.yaml"))
    else:
        device = instantiate(configuration.read("device", options.device, options.config_dir))
        _fit(options.framework, device, options.config_dir or CONF_DIRECTORY)
    return 0


def _fit(framework: str, device: DeviceProfile, folder: Path) -> None:
    """Fit a framework, print the residuals and write both into ``<folder>/framework/<framework>.yaml``."""
    from membench.lab.calibrate.fit import fit, residual_lines, with_fit
    from membench.lab.calibrate.rows import PAPER_DIRECTORY

    result = fit(framework, PAPER_DIRECTORY / "reference.csv", device)
    print("\n".join(residual_lines(result)))
    name = f"{framework}.yaml"
    text, target = (CONF_DIRECTORY / "framework" / name).read_text(), folder / "framework" / name
    target.parent.mkdir(exist_ok=True)
    write_whole(target, with_fit(text, result))
    print(f"{result.efficiency}\nwrote {shown(target)}")
