"""A Slurm cluster of one node, with accounting, in a temporary directory of this machine; it needs no privileges."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = (
    "munged",
    "mungekey",
    "mariadbd",
    "mariadb-install-db",
    "my_print_defaults",  # mariadb-install-db runs it
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sbatch",
)
_PATH = f"{os.environ['PATH']}:/usr/sbin"
_START_S = 30.0
"""The longest that a daemon may take until it answers."""
_CONFIGURATION = """\
ClusterName=membench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/controller
SlurmdSpoolDir={directory}/node
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass={directory}/munge.socket
AccountingStoragePort={accounting_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=cpu Nodes=ALL Default=YES MaxTime=60 State=UP
"""
_ACCOUNTING = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser={user}
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
"""
_DATABASE = """\
CREATE USER 'slurm'@'localhost' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        environment: variables with which Slurm's commands find it.
    """

    environment: Mapping[str, str]

    def ask(self, *command: str) -> str:
        """Run a command of Slurm's and return its output.

        Raises:
            RuntimeError: it failed; with what it printed.
        """
        ended = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=_START_S
        )
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    def jobs(self, state: str = "all") -> list[str]:
        """Return the numbers of the jobs in the queue, each task of an array by itself."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i", f"--states={state}").split()

    def accounted(self) -> dict[str, str]:
        """Return the state of each job, ended ones included, by number."""
        lines = self.ask("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State")
        return {number: state.split()[0] for number, state in (line.split("|") for line in lines.splitlines())}


@contextmanager
def required_cluster() -> Iterator[Cluster]:
    """Start a cluster, or skip tests without Slurm; at the end stop it with its jobs and delete its directory.

    Raises:
        RuntimeError: a daemon did not start; with the end of its output.
    """
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)} not found")
    directory = Path(tempfile.mkdtemp(prefix="membench-slurm-"))
    cluster = Cluster(os.environ | {"PATH": _PATH, "SLURM_CONF": str(directory / "slurm.conf")})
    with ExitStack() as daemons:
        try:
            _start(cluster, directory, daemons)
            yield cluster
        finally:
            _kill_all(directory)
            shutil.rmtree(directory)


def _start(cluster: Cluster, directory: Path, daemons: ExitStack) -> None:
    """Start the daemons, each as soon as the one before it answers; killing them is up to the caller."""
    user = pwd.getpwuid(os.getuid()).pw_name
    ports = iter(_free_ports(4))
    values = {
        "directory": directory,
        "host": socket.gethostname().partition(".")[0],
        "user": user,
        "password": secrets.token_hex(),
        "database_port": (database_port := next(ports)),
        "accounting_port": next(ports),
        "controller_port": next(ports),
        "node_port": next(ports),
    }
    for name, text in {
        "slurm.conf": _CONFIGURATION,
        "slurmdbd.conf": _ACCOUNTING,
        "database.sql": _DATABASE,
        "cgroup.conf": "",
    }.items():
        (directory / name).touch(mode=0o600)
        (directory / name).write_text(text.format(**values))
    (directory / "controller").mkdir()

    def start(*command: str, answers: Callable[[], object]) -> None:
        log = directory / f"{command[0]}.log"
        with log.open("w") as output:
            daemon = subprocess.Popen(
                command,
                env=cluster.environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the daemons
            )
        daemons.callback(daemon.wait)
        deadline_s, is_answered, reason = time.monotonic() + _START_S, False, ""
        while not is_answered:
            if daemon.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{command[0]} did not start: {reason}\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
            try:
                is_answered = bool(answers())
            except (OSError, RuntimeError) as error:
                reason = str(error)

    cluster.ask("mungekey", "--create", f"--keyfile={directory}/munge.key")
    munge = [f"--{name}-file={directory}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    start(
        "munged",
        "--foreground",
        "--force",  # though others may write to the directory above, as to /tmp
        f"--socket={directory}/munge.socket",
        *munge,
        answers=lambda: cluster.ask("munge", "--no-input", f"--socket={directory}/munge.socket"),
    )
    database = [f"--datadir={directory}/database", f"--user={user}"]
    cluster.ask("mariadb-install-db", "--no-defaults", "--skip-test-db", *database)
    start(
        "mariadbd",
        "--no-defaults",
        *database,
        "--bind-address=127.0.0.1",
        f"--port={database_port}",
        f"--socket={directory}/database.socket",
        f"--init-file={directory}/database.sql",
        answers=lambda: _accepts(database_port),
    )
    start("slurmdbd", "-D", answers=lambda: cluster.ask("sacctmgr", "--immediate", "add", "cluster", "membench"))
    start("slurmctld", "-D", answers=lambda: cluster.ask("scontrol", "ping"))
    start("slurmd", "-D", answers=lambda: "idle" in cluster.ask("sinfo", "--noheader", "--format=%T"))


def _accepts(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)):
        return True


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _kill_all(directory: Path) -> None:
    """Kill the daemons and jobs: every process whose environment names the cluster's directory."""
    while processes := _processes_of(directory):
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _processes_of(directory: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if bytes(directory) in path.read_bytes():
                found.append(int(path.parent.name))
    return found
