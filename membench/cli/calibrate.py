"""Fit a framework's constants on its own rows of a paper, or measure this machine's GPU.

    membench calibrate device=cuda                   writes conf/device/<gpu>.yaml
    membench calibrate device=cuda --config-dir my   writes my/device/<gpu>.yaml, for `membench run --config-dir my`
    membench calibrate framework=caffe device=k40m   writes into conf/framework/<framework>.yaml
    membench calibrate codec                         prints the rate of EPMC's serial baseline
    membench calibrate waves                         prints Winograd's rate and the waves that fill a Kepler
    membench calibrate kernels                       writes the rates of PyTorch's kernels into conf/framework/pytorch.yaml

A fit reads what Layrub's paper measured of that framework (Table 5: seconds of 20 iterations; Table 6: runtime memory, for
Caffe alone, and of Layrub on ResNet-1517), and no other row; that of waves reads MXNet's published throughputs on a K80,
and that of kernels 40 of timm's published steps on an RTX 3090, which it lists in experiments/validation/fitted.yaml.
Each prints every residual and writes the same bytes each time. Fits need a checkout of the repository; where membench is
installed, whose files stay as they are, a GPU needs --config-dir FOLDER.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from membench.cli.words import Reader, read_options, refuse_flags, take_config_dir
from membench.core import configuration
from membench.core.checks import choice
from membench.core.configuration import CONF_DIRECTORY, IS_INSTALLED, ROOT, instantiate
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.files import shown, write_whole


@dataclass(frozen=True)
class Settings:
    """The constants to find.

    Attributes:
        framework: the name in ``conf/framework``; empty to measure a GPU.
        device: the name in ``conf/device`` that the paper's rows are of; ``cuda`` to measure this machine's GPU instead.
        codec: fit the rate of EPMC's serial baseline instead.
        waves: fit Winograd's rate and the waves that fill a Kepler instead.
        kernels: fit the rates of PyTorch's kernels instead.
        config_dir: the folder to write into; None: ``conf/``.
    """

    framework: str = ""
    device: str = ""
    codec: bool = False
    waves: bool = False
    kernels: bool = False
    config_dir: Path | None = None


def parse(words: Sequence[str]) -> Settings:
    """Return the settings that the words are."""
    own, words = take_config_dir(words)
    refuse_flags(words)
    if words in (["codec"], ["waves"], ["kernels"]):
        return Settings(codec="codec" in words, waves="waves" in words, kernels="kernels" in words)
    readers: dict[str, Reader] = {
        "framework": partial(choice, configuration.names("framework"), "framework"),
        "device": partial(choice, ["cuda", *configuration.names("device", own)], "device"),
    }
    settings = Settings(**read_options(words, readers), config_dir=own)
    if not settings.device or (settings.device == "cuda") == bool(settings.framework):
        raise MembenchError(
            "name what to calibrate: `device=cuda`, `framework=caffe device=k40m`, `codec`, `waves` or `kernels`, each alone"
        )
    return settings


def run(settings: Settings) -> int:
    """Fit or measure, print what was found, and return the exit code.

    Raises:
        MembenchError: membench is installed, and has neither the papers' numbers to fit nor files of its own to write.
    """
    is_fit = settings.device != "cuda"
    if IS_INSTALLED and is_fit:
        raise MembenchError(
            "a fit reads a paper's numbers, which are not installed; run it in a checkout of membench"
        )
    if IS_INSTALLED and settings.config_dir is None:
        raise MembenchError("name the folder to write into, as in: device=cuda --config-dir my_conf")
    folder = settings.config_dir or CONF_DIRECTORY
    if settings.codec:
        from membench.papers.calibrate.codec import fit_codec

        print(fit_codec())
    elif settings.waves:
        from membench.papers.calibrate.waves import fit_waves

        print(fit_waves())
    elif settings.kernels:
        from membench.validation.kernel_rates import fit_kernels

        print(fit_kernels(ROOT / "experiments" / "validation", CONF_DIRECTORY / "framework" / "pytorch.yaml"))
    elif is_fit:
        device = instantiate(configuration.read("device", settings.device, settings.config_dir))
        _fit(settings.framework, device, folder)
    else:
        _measure_gpu(folder)
    return 0


def _measure_gpu(folder: Path) -> None:
    """Measure this machine's GPU, if there is one, and write ``<folder>/device/<gpu>.yaml``."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.backends.real import real_device
    from membench.profiling.rates import device_yaml, measure_device
    from membench.sweep.results.provenance import device_facts

    profile, link = measure_device(real_device("cuda"))
    target = folder / "device" / f"{profile.name}.yaml"
    target.parent.mkdir(exist_ok=True)
    write_whole(target, device_yaml(profile, link, device_facts("cuda")))
    print(f"{profile}\n{link}\nwrote {shown(target)}")


def _fit(framework: str, device: DeviceProfile, folder: Path) -> None:
    """Fit a framework, print the residuals and write both into ``<folder>/framework/<framework>.yaml``."""
    from membench.papers.calibrate.fit import fit, residual_lines, with_fit
    from membench.papers.calibrate.rows import PAPER_DIRECTORY

    result = fit(framework, PAPER_DIRECTORY / "reference.csv", device)
    print("\n".join(residual_lines(result)))
    name = f"{framework}.yaml"
    text, target = (CONF_DIRECTORY / "framework" / name).read_text(), folder / "framework" / name
    target.parent.mkdir(exist_ok=True)
    write_whole(target, with_fit(text, result))
    print(f"{result.efficiency}\nwrote {shown(target)}")
