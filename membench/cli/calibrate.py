"""Fit a framework's constants on its own rows of a paper, or measure this machine's GPU.

    membench calibrate framework=caffe device=k40m   writes into conf/framework/<framework>.yaml
    membench calibrate device=cuda                   writes conf/device/<gpu>.yaml
    membench calibrate codec                         prints the rate of EPMC's serial baseline

A fit reads what Layrub's paper measured of that framework (Table 5: seconds of 20 iterations; Table 6: runtime memory, for
Caffe alone, and of Layrub on ResNet-1517), and no other row of another system. It prints every residual and writes the same bytes each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from membench.cli.words import read_options, split
from membench.core import configuration
from membench.core.configuration import CONF_DIRECTORY
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.files import write_whole


@dataclass(frozen=True)
class Settings:
    """The constants to find.

    Attributes:
        framework: the name in ``conf/framework``.
        device: the name in ``conf/device`` that the paper's rows are of; ``cuda`` to measure this machine's GPU instead.
        codec: fit the rate of EPMC's serial baseline instead.
    """

    framework: str = "caffe"
    device: str = "k40m"
    codec: bool = False


def parse(words: Sequence[str]) -> Settings:
    """Return the settings that the words are."""
    if list(words) == ["codec"]:
        return Settings(codec=True)
    bare, options = split(words)
    if bare:
        raise MembenchError(
            f"{bare[0]!r} is not a choice; write `codec` alone, or framework=caffe device=k40m"
        )
    return Settings(**read_options(options, {"framework": str, "device": str}))


def run(settings: Settings) -> int:
    """Fit or measure, print what was found, and return the exit code."""
    if settings.codec:
        from membench.papers.calibrate.codec import fit_codec

        print(fit_codec())
    elif settings.device == "cuda":
        _measure_gpu()
    else:
        _fit(settings.framework, configuration.load("device", settings.device))
    return 0


def _measure_gpu() -> None:
    """Measure this machine's GPU, if there is one, and write ``conf/device/<gpu>.yaml``."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.backends.real import real_device
    from membench.profiling.rates import device_yaml, measure_device
    from membench.sweep.provenance import device_facts

    profile, link = measure_device(real_device("cuda"))
    target = CONF_DIRECTORY / "device" / f"{profile.name}.yaml"
    write_whole(target, device_yaml(profile, link, device_facts("cuda")))
    print(f"{profile}\n{link}\nwrote {target}")


def _fit(framework: str, device: DeviceProfile) -> None:
    """Fit a framework, print the residuals and write both into ``conf/framework/<framework>.yaml``."""
    from membench.papers.calibrate.fit import fit, residual_lines, with_fit
    from membench.papers.calibrate.rows import PAPER_DIRECTORY

    result = fit(framework, PAPER_DIRECTORY / "reference.csv", device)
    print("\n".join(residual_lines(result)))
    target = CONF_DIRECTORY / "framework" / f"{framework}.yaml"
    write_whole(target, with_fit(target.read_text(), result))
    print(f"{result.efficiency}\nwrote {target}")
