"""What every monitor has in common: its folder, its parts, and the form in which it reports.

A monitor is a class with a name, its configurations (the usual one first), the shortest period that it accepts, its version or why it cannot run
here, and what starts the server's part and the node's part. Each part writes its files, starts its processes and waits until it samples.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from harness import BenchError, Json

from .processes import Processes

ROLES = ("server", "node", "both")
ADDRESS = "server.json"
LOOPBACK = "127.0.0.1"
# Debian's place of daemons, which a user's PATH may lack.
FURTHER_PATHS = ("/usr/sbin", "/sbin")


class Monitor:
    name: ClassVar[str]
    configurations: ClassVar[tuple[str, ...]]
    shortest_ns: ClassVar[int]

    @classmethod
    def version(cls) -> str:
        """The version as the program reports it; a `BenchError` says why it cannot run here and what to install."""
        raise NotImplementedError

    @classmethod
    def check_interval(cls, interval_ns: int) -> None:
        """Refuses periods that the monitor does not accept."""

    def __init__(self, role: str, configuration: str, interval_ns: int, folder: Path) -> None:
        self.role, self.configuration, self.interval_ns = role, configuration, interval_ns
        folder.mkdir(parents=True, exist_ok=True)
        # Shared by all nodes.
        self.folder = folder.resolve()
        self.processes = Processes()
        # Values in each period on this node, counted in the output of the monitor; 0 for the server's part alone.
        self.metrics = 0
        # Files and arguments, in full.
        self.configured = ""
        # Files into which a process writes 0 to enter the job whose metrics are read.
        self.job: list[str] = []
        self._samples: Callable[[], int | None] | None = None
        self._since = 0.0

    def start(self) -> None:
        """Starts the parts of this role, the server's first; returns when the monitor samples."""
        if self.has_server:
            self.start_server()
        if self.has_node:
            self.start_node()

    def start_server(self) -> None:
        pass

    def start_node(self) -> None:
        raise NotImplementedError

    def ticks(self) -> tuple[int, int] | None:
        """Samples made and missed since the start, where the monitor reports them."""
        if self._samples is None or (made := self._samples()) is None:
            return None
        due = int((time.monotonic() - self._since) * 1e9) // max(self.interval_ns, 1)
        return made, max(due - made, 0)

    def stop(self) -> None:
        self.processes.stop()

    # Folders and the server's address.

    @property
    def has_server(self) -> bool:
        return self.role != "node"

    @property
    def has_node(self) -> bool:
        return self.role != "server"

    @property
    def listen(self) -> str:
        """What the server's part listens on: loopback where both parts are on one machine."""
        return LOOPBACK if self.role == "both" else "0.0.0.0"

    @property
    def own_host(self) -> str:
        """The host at which the other part reaches this machine."""
        return LOOPBACK if self.role == "both" else socket.gethostname()

    def server_path(self, name: str = "") -> Path:
        return self._path("server", name)

    def node_path(self, name: str = "") -> Path:
        return self._path(f"node-{node_name()}", name)

    def shared_path(self, name: str) -> Path:
        return self._path("", name)

    def _path(self, part: str, name: str) -> Path:
        path = self.folder / part / name
        (path.parent if name else path).mkdir(parents=True, exist_ok=True)
        return path

    def write(self, path: Path, text: str) -> Path:
        """Writes a configuration file and records it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.configured += f"# {path.relative_to(self.folder)}\n{text.rstrip()}\n"
        return path

    def run(self, name: str, server: bool, command: Sequence[str | Path], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        """Starts a process and records its command."""
        words = [str(word) for word in command]
        self.configured += f"# {shlex.join(words)}\n"
        self.processes.start(name, server, words, log, env, cwd)

    def announce(self, **ports: int) -> Json:
        """Leaves the server's address for the nodes."""
        address: Json = {"host": self.own_host, "ports": ports}
        self.shared_path(ADDRESS).write_text(json.dumps(address))
        return address

    def address(self) -> Json:
        path = self.folder / ADDRESS
        try:
            address: Json = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise BenchError(f"reading {path}: {error}; start the monitor with --role server and the same --dir first") from error
        return address

    def counts(self, since: float, samples: Callable[[], int | None]) -> None:
        """From `since` on there is a sample in each period, which `samples` counts."""
        self._since, self._samples = since, samples


class PullMonitor(Monitor):
    """A monitor whose server's part asks its nodes, with a program for each node. For nodes elsewhere the server's part is there before them, so each of
    them leaves its command in the shared folder, and the server's part starts it."""

    puller: ClassVar[str]
    # Looks for commands once a second, starts each once, and ends them when it is ended.
    STARTER: ClassVar[str] = """ids=
trap 'kill $ids 2>/dev/null; wait; exit' TERM
while :; do
    for script in "$1"/*.sh; do
        [ -e "$script" ] || continue
        mv "$script" "$script.started"
        sh "$script.started" &
        ids="$ids $!"
    done
    sleep 1
done
"""

    def start_server(self) -> None:
        if not self.has_node:
            commands = self.shared_path("commands")
            commands.mkdir(exist_ok=True)
            self.run(self.puller, True, ["sh", "-c", self.STARTER, self.puller, commands], self.server_path("out.log"))

    @property
    def output(self) -> Path:
        """What is pulled from this node."""
        return self.shared_path(f"pulled/{node_name()}")

    def pull(self, command: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
        """Has the server's part run a command that asks this node: here, or where that part is."""
        if self.role == "both":
            self.run(self.puller, True, command, self.server_path("out.log"), env)
            return
        script = pull_script(command, env or {})
        self.configured += f"# {script}\n"
        path = self.shared_path(f"commands/{node_name()}.sh")
        partial = path.with_suffix(".part")
        partial.write_text(script)
        partial.rename(path)


def pull_script(command: Sequence[str | Path], env: dict[str, str]) -> str:
    """A command as a shell reads it."""
    return shlex.join(["exec", "env", *(f"{name}={value}" for name, value in env.items()), *map(str, command)])


def node_name() -> str:
    """Slurm's name of the node within one of its steps, where two nodes may be one machine; else the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def installed(name: str, package: str) -> str:
    """The path of a program."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *FURTHER_PATHS]))
    if path is None:
        raise BenchError(f"{name} is not installed: bench/prepare does it, or apt-get install {package}")
    return path


def version_of(program: str, *arguments: str) -> str:
    """The first version number in the output of a program."""
    try:
        result = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise BenchError(f"asking {program} for its version: {error}") from error
    version = version_in(result.stdout + result.stderr)
    if version is None:
        raise BenchError(f"{program} {' '.join(arguments)} prints no version: {(result.stdout + result.stderr).strip()}")
    return version


def version_in(text: str) -> str | None:
    words = (word.strip("v,;()") for word in text.split())
    return next((word for word in words if re.match(r"\d", word) and "." in word), None)


def ours(name: str) -> str:
    """A program of this project beside `wholegrain-bench`, or in a folder above it, as Cargo and packages install them."""
    bench = Path(os.environ["WHOLEGRAIN_BENCH"])
    found = next((folder / name for folder in bench.parents if (folder / name).is_file()), None)
    if found is None:
        raise BenchError(f"{name} is not beside {bench}: `make build` builds it")
    return str(found)


def output_of(command: Sequence[str | Path]) -> str:
    """The standard output of a command that has to succeed."""
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        raise BenchError(f"{shlex.join(map(str, command))} failed (exit status: {result.returncode}): {result.stderr.strip()}")
    return result.stdout


def user() -> str:
    return output_of(["id", "-un"]).strip()


def whole(interval_ns: int, unit_ns: int, what: str) -> None:
    """Refuses an interval that is no multiple of a unit."""
    if interval_ns % unit_ns:
        raise BenchError(f"{what}: {interval_ns} ns is not a multiple of {unit_ns} ns")
