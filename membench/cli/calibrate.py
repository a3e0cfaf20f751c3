"""Measure this machine's GPU: the rates and the link that predictions of it take.

    membench calibrate device=cuda                   writes conf/device/<gpu>.yaml
    membench calibrate device=cuda --config-dir my   writes my/device/<gpu>.yaml, for `membench run --config-dir my`

Where membench is installed, whose files stay as they are, it needs --config-dir FOLDER.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from membench.cli.words import FLAG, read_options, refuse_flags, take_config_dir
from membench.core.configuration import CONF_DIRECTORY, IS_INSTALLED
from membench.core.errors import MembenchError
from membench.core.files import shown, write_whole


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        config_dir: the folder to write into; None: ``conf/``.
    """

    device: Literal["cuda"]
    config_dir: Annotated[Path | None, FLAG] = None


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    own, words = take_config_dir(words)
    refuse_flags(words)
    options = read_options(words, Options)
    if not options:
        raise MembenchError("name what to calibrate: device=cuda")
    return Options(**options, config_dir=own)


def run(options: Options) -> int:
    """Measure the GPU, write ``<folder>/device/<gpu>.yaml``, and return the exit code.

    Raises:
        MembenchError: there is no GPU; membench is installed, and has no files of its own to write.
    """
    if IS_INSTALLED and options.config_dir is None:
        raise MembenchError("name the folder to write into, as in: device=cuda --config-dir my_conf")
    # torch takes seconds, which a wrong word need not wait for
    from membench.backends.real import real_device
    from membench.profiling.rates import device_yaml, measure_device
    from membench.sweep.results.provenance import device_facts

    profile, link = measure_device(real_device(options.device))
    target = (options.config_dir or CONF_DIRECTORY) / "device" / f"{profile.name}.yaml"
    target.parent.mkdir(exist_ok=True)
    write_whole(target, device_yaml(profile, link, device_facts(options.device)))
    print(f"{profile}\n{link}\nwrote {shown(target)}")
    return 0
