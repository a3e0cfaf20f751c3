"""`python -m membench model=resnet50 strategy=layrub_hybrid device=k40m batch_size=32`: one cell, or with -m many.

`torchrun --nproc-per-node 2 -m membench backend=cpu ...` runs it in processes that share the batch; the first one reports.
Hydra composes `conf/`; the arguments are checked first, so that a wrong one gets one line and no traceback.
"""

import dataclasses
import json
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from membench.configuration import CONF_DIRECTORY
from membench.errors import MembenchError
from membench.record import Outcome, Record
from membench.report.summary import summary
from membench.suite.command_line import check_arguments, shown
from membench.suite.composition import cell_configuration
from membench.suite.runner import failed

_failures: list[str] = []


@hydra.main(config_path=str(CONF_DIRECTORY), config_name="config", version_base="1.3")
def run(config: DictConfig) -> Record | None:
    """Run the composed cell, print its summary and write its record; of several processes, the first does."""
    from membench import processes  # torch takes seconds; a wrong word should not
    from membench.suite.cell import run_cell

    configuration = cell_configuration(config)
    try:
        with processes.join(config.backend.name, config.timeout_s):
            record = run_cell(configuration)
    except MembenchError as error:
        record = failed(configuration, str(error))
    if record.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED):
        _failures.append(record.reason)
    if processes.launched().rank:
        return None
    path = Path(HydraConfig.get().runtime.output_dir) / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n")
    print(summary(record))
    print(f"  {'record':<20} {shown(path)}")
    return record


def main() -> int:
    """Run the command line and return its exit code."""
    if not {"--help", "-h", "--hydra-help", "--info", "--cfg"} & set(sys.argv):
        try:
            check_arguments(sys.argv[1:])
        except MembenchError as error:
            print(error, file=sys.stderr)
            return 2
    run()
    return 1 if _failures else 0


if __name__ == "__main__":
    sys.exit(main())
