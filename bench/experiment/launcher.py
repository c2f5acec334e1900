"""The words that start a workload or a monitor on this machine, by mpirun, or within an allocation of Slurm.

A monitor's part is started once for each host, by a launch of its own: its two lines then arrive whole, and an error names its host. Launchers pass on the
end of standard input, which therefore ends a monitor's part; they treat signals differently.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness import BenchError, Json, interval_name

from .file import Experiment, Launcher, Workload

# The variable by which Slurm names the nodes of an allocation.
NODES = "SLURM_JOB_NODELIST"
# A workload's own timeout comes so much later than the runner's.
BEYOND_LIMIT_S = 60
SERVER = "its server"


@dataclass
class Start:
    """How a part of a monitor is started."""

    command: list[str]
    node: bool
    # Its name in a failure; None where everything is on one machine.
    place: str | None


class Site:
    """This machine, the listed hosts, or the allocation in which this program runs."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.hosts = {"local": lambda: [""], "mpirun": lambda: launcher.hosts, "slurm": slurm_hosts}[launcher.kind]()
        self.program = os.environ["WHOLEGRAIN_BENCH"]

    @property
    def is_launched(self) -> bool:
        """Whether a launcher is between this program and the monitor."""
        return self.launcher.kind != "local"

    def _ranks_launcher(self, condition: Json) -> str | None:
        """The words that start the ranks of a workload; None for the workload's own. `{ranks}` stays in it."""
        hosts = self.hosts[: condition["hosts"]]
        slots = -(-condition["ranks"] // len(hosts))
        template = self.launcher.workload
        if template is None:
            if not self.is_launched:
                return None
            # An MPI that knows Slurm finds the allocation by itself, and every MPI has an mpirun.
            template = f"mpirun{as_root()} --host {{slots}} -np {{ranks}}"
        of = {"{slots}": ",".join(f"{host}:{slots}" for host in hosts), "{hosts}": ",".join(hosts), "{nodes}": str(len(hosts))}
        return fill(template, of)

    def workload(self, workload: Workload, condition: Json, folder: Path, limit_ns: int) -> list[str]:
        """The command of a workload's run, which ends by itself a while after the limit."""
        launcher = self._ranks_launcher(condition)
        if workload.command is None:
            words = [self.program, "workload", "run", workload.name, "--size", workload.size, "--ranks", str(workload.ranks), "--dir", str(folder)]
            words += ["--timeout-s", str(limit_ns // 10**9 + BEYOND_LIMIT_S)]
            return words + (["--launcher", launcher] if launcher else [])
        launcher = launcher or f"mpirun{as_root()} --oversubscribe -np {{ranks}}"
        of = {"{ranks}": str(workload.ranks), "{size}": workload.size, "{nodes}": str(condition["hosts"]), "{dir}": str(folder)}
        split = (launcher.split() if word == "{launcher}" else [word] for word in workload.command)
        return [fill(word, of) for words in split for word in words]

    def monitor(self, experiment: Experiment, condition: Json, folder: Path) -> list[Start]:
        """A monitor's parts, the server's first where there is one."""
        if not self.is_launched:
            return [Start(self._part(experiment, condition, "both", folder), True, None)]
        default = f"mpirun{as_root()} --host {{host}} --bind-to none -np 1"
        if self.launcher.kind == "slurm":
            # On a node with all of its cores, as a service has them.
            default = "srun --overlap --nodes=1 --ntasks=1 --nodelist={host} --cpu-bind=none --quiet"
        starts = [Start(self._part(experiment, condition, "server", folder), False, SERVER)]
        for host in self.hosts[: condition["hosts"]]:
            words = [word.replace("{host}", host) for word in (self.launcher.monitor or default).split()]
            starts.append(Start(words + self._part(experiment, condition, "node", folder), True, host))
        return starts

    def _part(self, experiment: Experiment, condition: Json, role: str, folder: Path) -> list[str]:
        interval = interval_name(condition["interval_ns"])
        own = next((m.command for m in experiment.monitors if m.name == condition["monitor"]), None)
        if own is not None:
            of = {"{configuration}": condition["configuration"], "{interval}": interval, "{role}": role, "{dir}": str(folder)}
            return [fill(word, of) for word in own]
        words = ["--configuration", condition["configuration"], "--interval", interval, "--role", role, "--dir", str(folder)]
        return [self.program, "monitor", "run", condition["monitor"], *words]


def fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def as_root() -> str:
    """Open MPI refuses to be run by root unless an option says that this is intended."""
    return " --allow-run-as-root" if os.geteuid() == 0 else ""


def slurm_hosts() -> list[str]:
    """The nodes of the allocation in which this program runs."""
    if not (nodes := os.environ.get(NODES)):
        raise BenchError(
            f"{NODES} is not set: start it within an allocation (salloc -N 2 …), or by sbatch as bench/experiments/cluster.sbatch shows"
        )
    try:
        result = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True)
    except OSError as error:
        raise BenchError(f"scontrol, which reports the nodes of the allocation: {error}") from error
    if result.returncode or not result.stdout.split():
        raise BenchError(f"scontrol show hostnames {nodes}: {result.stderr.strip() or 'no node'}")
    return result.stdout.split()
