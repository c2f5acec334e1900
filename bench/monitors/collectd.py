"""collectd, which sends with its network plugin to a collectd that receives.

The receiver keeps the newest values and writes one series to CSV, by which ticks are counted: less than a server in service does, which writes all of
them. The sender has a socket over which its values are counted before anything is measured.
"""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from harness import HTTP_TIMEOUT_S, free_port

from .base import Monitor, installed, node_name, version_of

PROGRAM = ("collectd", "collectd-core")
# The values of meminfo, vmstat and stat.
SAME = """LoadPlugin cpu
<Plugin cpu>
  ReportByCpu true
  ReportByState true
  ValuesPercentage false
</Plugin>
LoadPlugin contextswitch
LoadPlugin memory
LoadPlugin vmem
<Plugin vmem>
  Verbose true
</Plugin>
"""
# Other files of /proc that our agent reads by default; collectd has no plugin for pressure.
FURTHER = """LoadPlugin load
LoadPlugin interface
LoadPlugin protocols
LoadPlugin disk
<Plugin disk>
  Disk "/^(loop|ram)[0-9]+$/"
  IgnoreSelected true
</Plugin>
"""
# Ticks are the values of one series.
COUNTED = """LoadPlugin csv
<Plugin csv>
  DataDir "csv"
</Plugin>
LoadPlugin match_regex
PostCacheChain "PostCache"
<Chain "PostCache">
  <Rule "ticks">
    <Match "regex">
      Plugin "^vmem$"
      TypeInstance "^free_pages$"
    </Match>
    <Target "write">
      Plugin "csv"
    </Target>
  </Rule>
  Target "stop"
</Chain>
"""


class Collectd(Monitor):
    name, configurations, shortest_ns = "collectd", ("default", "same"), 10**6

    @classmethod
    def version(cls) -> str:
        return version_of(installed(*PROGRAM), "-h")

    def head(self, name: str, base: Path) -> str:
        # With several threads that write, values overtake each other and are discarded as too old.
        return (
            f'Hostname "{name}"\nFQDNLookup false\nBaseDir "{base}"\nPIDFile "{base}/pid"\nPluginDir "/usr/lib/collectd"\n'
            f'TypesDB "/usr/share/collectd/types.db"\nInterval {self.interval_ns / 1e9:g}\nWriteThreads 1\n'
            "LoadPlugin logfile\n<Plugin logfile>\n  LogLevel warning\n  File STDOUT\n</Plugin>\n"
        )

    def network(self, word: str, host: str, port: int) -> str:
        return f'LoadPlugin network\n<Plugin network>\n  {word} "{host}" "{port}"\n</Plugin>\n'

    def start_server(self) -> None:
        port = self.announce(collectd=free_port())["ports"]["collectd"]
        # The path of its CSV is relative: it makes no file below a folder whose name begins with a dot.
        text = self.head("server", self.server_path()) + self.network("Listen", self.listen, port) + COUNTED
        config = self.write(self.server_path("collectd.conf"), text)
        self.run("collectd (receives)", True, [installed(*PROGRAM), "-f", "-C", config], self.server_path("collectd.log"))

    def start_node(self) -> None:
        address, path = self.address(), self.node_path("socket")
        text = self.head(node_name(), self.node_path()) + SAME + (FURTHER if self.configuration == "default" else "")
        text += self.network("Server", address["host"], address["ports"]["collectd"])
        text += f'LoadPlugin unixsock\n<Plugin unixsock>\n  SocketFile "{path}"\n</Plugin>\n'
        since = time.monotonic()
        config = self.write(self.node_path("collectd.conf"), text)
        self.run("collectd", False, [installed(*PROGRAM), "-f", "-C", config], self.node_path("collectd.log"))
        ticks = self.server_path("csv") / node_name() / "vmem"
        self.processes.wait_until("collectd's values arrive", lambda: lines(ticks) > 1)

        # All plugins have read by then; values that are differences of two reads come with the second.
        def complete() -> bool:
            before, self.metrics = self.metrics, values(path)
            return self.metrics == before > 0

        self.processes.wait_until("collectd has all of its values", complete)
        self.counts(since, lambda: lines(ticks))


def lines(folder: Path) -> int:
    """Lines of readings in the CSV files that the receiver wrote of a node: one a tick, after one of names."""
    return sum(max(file.read_bytes().count(b"\n") - 1, 0) for file in folder.iterdir()) if folder.exists() else 0


def values(path: Path) -> int:
    """How many values it has: one or more of each identifier, by LISTVAL and GETVAL of collectd-unixsock(5)."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HTTP_TIMEOUT_S)
        connection.connect(str(path))
        stream = connection.makefile("rw")

        def ask(command: str) -> list[str]:
            stream.write(f"{command}\n")
            stream.flush()
            count = int(re.match(r"-?\d+|$", stream.readline())[0] or -1)  # type: ignore[index]
            # An identifier that is gone meanwhile has no values.
            return [stream.readline() for _ in range(count)]

        names = [line.split(" ", 1)[1].strip() for line in ask("LISTVAL")]
        return sum(len(ask(f'GETVAL "{name}"')) for name in names)
