"""Run one cell, or with -m many: a training step of a model under a memory-saving strategy.

    membench run model=resnet50 strategy=layrub_hybrid device=k40m batch_size=32
    membench run -m strategy=network_wide,layrub_hybrid model=resnet34,resnet50
    membench run -m paper=layrub model=resnet34,resnet50 strategy=layrub_hybrid,memonger      as in the paper's tables
    torchrun --nproc-per-node 2 -m membench run model=digits_cnn backend=cpu     each process on its share of the batch

The step is simulated, or with backend=cpu or backend=cuda measured. A cell that has a record in outputs/records is not
run again: rerun=missing|failed|all. dry_run=true lists what would run; strict=true exits with 1 if a cell failed or ran
out of time (a step that does not fit the memory or the budget, or that a method cannot run, is a result and not a
failure).
An option of a group is changed by group.option=value. --config-dir FOLDER adds your own files to those of conf/: a file
FOLDER/model/mine.yaml makes model=mine. Other flags of Hydra's (--cfg job, --info) work too.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from membench.cli.command_line import MULTIRUN, check_arguments
from membench.cli.commands import groups_of
from membench.cli.job import run_job
from membench.cli.words import CONFIG_DIR, in_own_words, refuse_flags, take_config_dir
from membench.core.configuration import CONF_DIRECTORY
from membench.core.errors import MembenchError, one_line

_LOST_JOB = "{0} {1}; jobs that still run or wait go on, and after them the same command runs what is missing"
"""Of a job that ended without an answer; filled with the lines of submitit's error, which names its log's folder."""

_NO_SLURM = (
    "hydra/launcher=cluster submits Slurm jobs, and there is no srun here; run it where Slurm is, or leave it out, or "
    "choose hydra/launcher=workstation"
)


def parse(words: Sequence[str]) -> list[str]:
    """Return the words, each of them checked, in the order that Hydra takes: flags first.

    Values of options are checked where something is to run; other flags ask about the configuration.
    """
    own, rest = take_config_dir(words)
    parser = get_args_parser()
    parser.error = _refuse_flags  # type: ignore[method-assign]
    options = parser.parse_intermixed_args(rest).overrides
    flags = [word for word in rest if word not in options]
    options = in_own_words(options, groups_of("run"), own)
    if set(flags) <= MULTIRUN:
        check_arguments([*flags, *options], own)
    return [*([CONFIG_DIR, str(own)] if own else []), *flags, *options]


def _refuse_flags(message: str) -> NoReturn:
    """Raise argparse's complaint about flags as an error of one line."""
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown != message:
        refuse_flags(unknown.split(), (CONFIG_DIR, "--multirun", "--cfg", "--info", "--resolve", "--package"))
    raise MembenchError(message)


def run(words: list[str]) -> int:
    """Run each cell as a job, here or where Hydra's launcher runs it; `SweepCallback` summarises them. Return 0."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, and does not print them with a traceback
    sys.argv[1:] = words
    try:
        _task()
    except ValueError as error:  # flags that do not go together
        raise MembenchError(one_line(error)) from error
    except Exception as error:
        if _is_of_lost_job(error):
            raise MembenchError(_LOST_JOB.format(*str(error).splitlines())) from error
        if isinstance(error, RuntimeError) and "srun" in str(error):  # submitit's
            raise MembenchError(_NO_SLURM) from error
        raise
    return 0


def _is_of_lost_job(error: Exception) -> bool:
    """Return whether a launcher of submitit's waited for a job that was cancelled or killed."""
    submitit = sys.modules.get("submitit")
    return submitit is not None and isinstance(error, submitit.core.utils.UncompletedJobError)


@hydra.main(config_path=str(CONF_DIRECTORY), config_name="config", version_base="1.3")
def _task(config: DictConfig) -> object:
    """Run the composed cell. Launchers pickle this function by value, so it refers to no other name of this module."""
    return run_job(config)
