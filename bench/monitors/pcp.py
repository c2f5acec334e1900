"""Performance Co-Pilot: `pmcd` with its agents on the node; `pmlogger`, which asks it in each period and writes an archive, as the server's part.

`default` are the agents of the package's own table and the metrics that its `pmlogconf` selects, all at the requested period: the state of a node
after the package was installed. `same` is the Linux agent with the values of /proc/meminfo, /proc/vmstat and /proc/stat.

PCP finds its files through the variables of `pcp.conf`, whose place an environment variable names. A copy with other places is therefore a PCP of its own,
which touches neither /etc/pcp nor /var/lib/pcp. Debian's package starts its services while it is installed, so bench/prepare-peers only unpacks it; one
that somebody installed is used where it is.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from pathlib import Path

from harness import CHECKOUT, BenchError, free_port

from .base import PullMonitor, user, whole

UNPACKED = CHECKOUT / "target/peers/pcp"
# The agent that reads the files of `same`, and pmcd's own, which costs nothing unasked.
SAME_AGENTS = ("pmcd", "linux")
SAME = """log mandatory on default {
    mem.util
    mem.vmstat
    kernel.all.cpu
    kernel.percpu.cpu
    kernel.all.intr
    kernel.all.pswitch
    kernel.all.sysfork
    kernel.all.running
    kernel.all.blocked
    kernel.all.boottime
}
"""
# Variables of pcp.conf that name folders of the run.
IN_RUN = {
    "PCP_VAR_DIR": "var", "PCP_RUN_DIR": "run", "PCP_LOG_DIR": "log", "PCP_ARCHIVE_DIR": "archive", "PCP_TMP_DIR": "tmp", "PCP_TMPFILE_DIR": "tmp",
}  # fmt: skip
# Archives of version 2, LOGARCHIVE(5): the tag of their label, and the lengths that a record can have.
TAG, RECORD_BYTES = 0x5005_2602, range(8, (64 << 20) + 1)


class Pcp(PullMonitor):
    # The logger's timers treat everything that is due within 10 ms as due: at 10 ms it makes 50 samples a second, at 20 ms all 50.
    name, configurations, shortest_ns, puller = "pcp", ("default", "same"), 2 * 10**7, "pmlogger"

    @classmethod
    def version(cls) -> str:
        return Installation().version()

    @classmethod
    def check_interval(cls, interval_ns: int) -> None:
        whole(interval_ns, 10**6, "pmlogger's periods are whole milliseconds")

    def start_node(self) -> None:
        pcp = Installation()
        env, port = self.set_up(pcp), free_port()
        command: list[str | Path] = [pcp.daemon("pmcd"), "-f", "-A", "-p", str(port), "-U", user()]
        if self.has_server:
            command += ["-i", "127.0.0.1"]
        command += ["-c", self.node_path("pmcd.conf"), "-n", self.node_path("var/pmns/root")]
        command += ["-s", self.node_path("run/pmcd.socket"), "-l", self.node_path("pmcd.log")]
        # Agents write their logs where they are started.
        self.run("pmcd", False, command, self.node_path("pmcd.out"), env, self.node_path())
        self.processes.wait_until("pmcd accepts connections", lambda: connects(port))

        url, metrics = f"pcp://{self.own_host}:{port}", self.node_path("pmlogger.conf")
        if self.configuration == "same":
            self.write(metrics, SAME)
        else:
            self.configured += select_metrics(pcp, env, url, metrics)
        archive = self.output
        remove_archive(archive)
        # Without these variables it listens for its own control program on every address from port 4330 on.
        env |= {"PMLOGGER_LOCAL": "1", "PMLOGGER_PORT": str(free_port())}
        period = f"{self.interval_ns // 10**6}msec"
        since = time.monotonic()
        self.pull([pcp.daemon("pmlogger"), "-V", "2", "-h", url, "-t", period, "-c", metrics, "-l", archive.with_suffix(".log"), archive], env)
        self.processes.wait_until("its archive has samples", lambda: counted(archive)[1] > 1)
        self.metrics = counted(archive)[0]
        self.counts(since, lambda: counted(archive)[1])

    def set_up(self, pcp: Installation) -> dict[str, str]:
        """Writes pcp.conf, the table of agents and the name space of metrics; the environment of the daemons."""
        env = pcp.env(self.node_path("pcp.conf"))
        variables = pcp.variables | {name: str(pcp.path(name)) for name, value in pcp.variables.items() if value.startswith("/") and pcp.path(name).exists()}
        for variable, name in IN_RUN.items():
            self.node_path(name).mkdir(exist_ok=True)
            variables[variable] = str(self.node_path(name))
        agents = pcp.path("PCP_PMDASADM_DIR")
        variables |= {"PCP_PMDAS_DIR": str(agents), "PCP_USER": user(), "PCP_GROUP": user()}
        Path(env["PCP_CONF"]).write_text("".join(f"{name}={value}\n" for name, value in sorted(variables.items())))
        packaged = pcp.path("PCP_PMCDCONF_PATH").read_text()
        keep = SAME_AGENTS if self.configuration == "same" else ()
        table = agents_table(packaged, keep).replace(pcp.variables["PCP_PMDAS_DIR"], str(agents))
        self.write(self.node_path("pmcd.conf"), table)
        # An installed package merges the name spaces when its services start.
        spaces = pcp.path("PCP_BINADM_DIR").with_name("pmns")
        if not (spaces / "root_linux").exists():
            spaces = pcp.path("PCP_VAR_DIR") / "pmns"
        files = [path for line in table.splitlines() if (path := spaces / f"root_{agent_of(line)}").exists()]
        if not files:
            raise BenchError(f"no name space of an agent in {spaces}")
        merged = self.node_path("var/pmns/root")
        result = subprocess.run([pcp.daemon("pmnsmerge"), "-f", *map(str, files), str(merged)], env=dict(os.environ) | env, capture_output=True, text=True)
        if not merged.exists():
            raise BenchError(f"pmnsmerge wrote no name space: {result.stderr.strip()}")
        return env


class Installation:
    """The system's own PCP, else the unpacked one."""

    def __init__(self) -> None:
        root = next((root for root in (Path("/"), UNPACKED) if (root / "etc/pcp.conf").exists()), None)
        if root is None:
            raise BenchError("Performance Co-Pilot is not installed: bench/prepare unpacks it")
        self.root = root
        lines = (line for line in (root / "etc/pcp.conf").read_text().splitlines() if "=" in line and not line.startswith("#"))
        self.variables = {name: value.strip() for name, _, value in (line.partition("=") for line in lines)}
        if not Path(self.daemon("pmcd")).exists():
            raise BenchError(f"{self.daemon('pmcd')} is missing: install Debian's package pcp, or have bench/prepare unpack it")

    def path(self, variable: str) -> Path:
        if variable not in self.variables:
            raise BenchError(f"pcp.conf has no {variable}")
        return self.root / self.variables[variable].lstrip("/")

    def daemon(self, name: str) -> str:
        return str(self.path("PCP_BINADM_DIR") / name)

    def env(self, conf: Path) -> dict[str, str]:
        libraries = {} if self.root == Path("/") else {"LD_LIBRARY_PATH": str(self.root / "usr/lib")}
        return {"PCP_CONF": str(conf)} | libraries

    def version(self) -> str:
        """pminfo reports it, among its errors; pmcd has no option for it."""
        program, env = str(self.path("PCP_BIN_DIR") / "pminfo"), dict(os.environ) | self.env(self.root / "etc/pcp.conf")
        try:
            result = subprocess.run([program, "--version"], env=env, capture_output=True, text=True)
        except OSError as error:
            raise BenchError(f"asking pminfo for its version: {error}") from error
        text = (result.stdout + result.stderr).strip()
        if not text.startswith("pminfo version "):
            raise BenchError(f"pminfo prints no version: {text}")
        return text.removeprefix("pminfo version ")


def select_metrics(pcp: Installation, env: dict[str, str], url: str, path: Path) -> str:
    """The package's own `pmlogconf` selects the metrics, as for the logger of a newly installed node."""
    command = [pcp.daemon("pmlogconf"), "-c", "-q", "-h", url, "-d", str(pcp.path("PCP_SYSCONF_DIR") / "pmlogconf"), str(path)]
    result = subprocess.run(command, env=dict(os.environ) | env, capture_output=True, text=True)
    text = path.read_text() if path.exists() else ""
    if not text:
        raise BenchError(f"pmlogconf selected no metrics: {result.stderr.strip()}")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return f"# {' '.join(command)}\n" + "\n".join(lines) + "\n"


def agent_of(line: str) -> str | None:
    """The agent of a line of pmcd's table."""
    words = line.split()
    return words[0] if len(words) > 1 and words[1].isdigit() else None


def agents_table(packaged: str, keep: tuple[str, ...]) -> str:
    """pmcd's table without comments, with the agents to keep (all when none is named), and its rules of access."""
    lines = (line for line in packaged.splitlines() if not line.startswith("#"))
    return "".join(f"{line}\n" for line in lines if not keep or agent_of(line) in (None, *keep))


def connects(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def remove_archive(base: Path) -> None:
    """Removes the files of an earlier archive: a logger overwrites none."""
    for path in base.parent.iterdir():
        if path.name.startswith(f"{base.name}."):
            path.unlink()


def counted(base: Path) -> tuple[int, int]:
    """The values of one sample of an archive, and its samples, up to the last whole record: the logger may be writing.

    Counted here because `pmdumplog` prints gigabytes for ten minutes of a busy logger. A sample has more than half as many values as the fullest record;
    the others are of metrics that are logged once.
    """
    records: list[int] = []
    number = 0
    while number == 0 or Path(f"{base}.{number}").exists():
        records += record_values(Path(f"{base}.{number}").read_bytes())
        number += 1
    most = max(records, default=0)
    return most, sum(values * 2 > most for values in records)


def record_values(volume: bytes) -> list[int]:
    """How many values each record of a volume has."""
    records: list[int] = []
    at, label = 0, True
    while at + 4 <= len(volume):
        (length,) = struct.unpack_from(">I", volume, at)
        if length not in RECORD_BYTES:
            raise ValueError(f"a record of {length} bytes")
        if at + length > len(volume):
            break
        payload, (end,) = volume[at + 4 : at + length - 4], struct.unpack_from(">I", volume, at + length - 4)
        if end != length:
            raise ValueError(f"a record of {length} bytes whose end says {end}")
        if label and struct.unpack_from(">I", payload)[0] != TAG:
            raise ValueError("not an archive of version 2")
        if not label:
            records.append(_values(payload))
        at, label = at + length, False
    return records


def _values(payload: bytes) -> int:
    """The values of a record, over all metrics and instances."""
    try:
        (metrics,) = struct.unpack_from(">I", payload, 8)
        at, total = 12, 0
        for _ in range(metrics):
            # A negative number is an error instead of values. Without values there is no word for their format.
            number = max(struct.unpack_from(">i", payload, at + 4)[0], 0)
            at += 8 + (4 + number * 8 if number else 0)
            total += number
    except struct.error as error:
        raise ValueError("a record that ends before its values") from error
    if at > len(payload):
        raise ValueError("a record that ends before its values")
    return total
