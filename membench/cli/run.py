"""`python -m membench model=resnet50 strategy=layrub_hybrid device=k40m batch_size=32`: one cell, or with -m many.

Hydra composes `conf/`; the arguments are checked first, so that a wrong one gets one line and no traceback. Each cell
is a job, here or wherever a launcher runs it; `SweepCallback` gathers what came out.
"""

import os
import sys

import hydra
from omegaconf import DictConfig

from membench.cli.command_line import EXPLAINED, MULTIRUN, check_arguments, explain
from membench.cli.job import run_job
from membench.core.configuration import CONF_DIRECTORY
from membench.sweep.listing import INTERRUPTED


@hydra.main(config_path=str(CONF_DIRECTORY), config_name="config", version_base="1.3")
def run(config: DictConfig) -> None:
    """Run the composed cell. Launchers pickle this function by value, so that it refers to nothing else of this file."""
    run_job(config)


def main() -> int:
    """Run the command line and return its exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, and not to Hydra's own printer of tracebacks
    try:
        # Hydra takes -m before all choices or behind them; whoever has other flags asks Hydra itself
        arguments = sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in MULTIRUN)
        if all(word in MULTIRUN for word in arguments if word.startswith("-")):
            check_arguments(arguments)
        run()
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except (*EXPLAINED, ValueError) as error:  # the latter of flags that do not go together
        print(explain(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
