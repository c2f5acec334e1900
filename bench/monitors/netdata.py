"""Netdata: a child on the node that streams to a parent, the server's part.

The child is a headless collector in the words of Netdata's documents, its leanest form for a node: no database, no web server, no alarms. The parent keeps
the values in memory for two hours and reports how many it received; it samples nothing itself. `default` are all plugins that Debian's packages
switch on, except the one that listens for others' metrics on a fixed port and Netdata's 330 figures about itself; `proc` only the plugin of /proc and
/sys; `same` that plugin with /proc/meminfo, /proc/vmstat and /proc/stat. Netdata makes charts of a part of these files, so its number of values for
the same reads is low. It runs at the lowest priority, which is its default.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from harness import BenchError, free_port, get

from .base import Monitor, installed, node_name, user, version_of, whole

# The daemon, and the script without which a child cannot stream.
PACKAGES = "netdata-core netdata-plugins-bash"
# How long the parent keeps values: with four bytes each, a few MB.
RETENTION_S = 7200
# No setting moves its command socket.
SOCKET = "/tmp/netdata-ipc"
SCRIPT = Path("/usr/lib/netdata/plugins.d/system-info.sh")
# The child is ready when the number of values has not grown for so long: charts come with their first value.
STABLE_S = 3.0
# Allows the child to stream to the parent of one run, on a port of its own.
KEY = "6f0b7d0e-52a5-4e52-9f0b-1c1f0e6a7d11"
# A chart of /proc/meminfo, which every configuration has.
CHART = "system.ram"
# Plugins that `proc` and `same` switch off.
OTHERS = ("timex", "idlejitter", "tc", "diskspace", "cgroups", "slabinfo", "fping", "apps", "ioping", "perf", "cups", "charts.d", "nfacct")
# The plugin of /proc reads these beside the three files of `same`.
OTHER_FILES = (
    "/proc/net/dev", "/proc/pagetypeinfo", "/proc/uptime", "/proc/loadavg", "/proc/sys/kernel/random/entropy_avail", "/proc/pressure", "/proc/interrupts",
    "/proc/softirqs", "/sys/kernel/mm/ksm", "/sys/block/zram", "/sys/devices/system/edac/mc", "/sys/devices/system/node", "/proc/net/wireless",
    "/proc/net/sockstat", "/proc/net/sockstat6", "/proc/net/netstat", "/proc/net/sctp/snmp", "/proc/net/softnet_stat", "/proc/net/ip_vs/stats",
    "/sys/class/infiniband", "/proc/net/stat/conntrack", "/proc/net/stat/synproxy", "/proc/diskstats", "/proc/mdstat", "/proc/net/rpc/nfsd",
    "/proc/net/rpc/nfs", "/proc/spl/kstat/zfs/arcstats", "/proc/spl/kstat/zfs/pool/state", "/sys/fs/btrfs", "ipc", "/sys/class/power_supply",
)  # fmt: skip


class Netdata(Monitor):
    name, configurations, shortest_ns = "netdata", ("default", "proc", "same"), 10**9

    @classmethod
    def version(cls) -> str:
        version = version_of(installed("netdata", PACKAGES), "-V")
        # Without the facts that this script prints a child of 1.37.1 aborts when it begins to stream.
        if not SCRIPT.exists():
            raise BenchError(f"{SCRIPT} is missing: bench/prepare installs it, or apt-get install {PACKAGES}")
        return version

    @classmethod
    def check_interval(cls, interval_ns: int) -> None:
        whole(interval_ns, 10**9, "Netdata's periods are whole seconds")

    def start_server(self) -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(SOCKET) == 0:
                raise BenchError(f"a Netdata runs on this machine, and another one would replace its command socket {SOCKET}: stop it first")
        port = free_port()
        stream = (
            f"[{KEY}]\n    type = api\n    enabled = yes\n    default memory mode = ram\n    default history = {RETENTION_S}\n"
            "    health enabled by default = no\n"
        )
        web = f"    bind to = {self.listen}:{port}\n"
        self.daemon("netdata parent", True, self.server_path("netdata"), "wholegrain-bench-parent", "ram", 1, web, switched_off("proc", *OTHERS), stream)
        self.processes.wait_until("the parent responds", lambda: bool(get(f"http://127.0.0.1:{port}/api/v1/info")))
        self.announce(netdata=port)

    def start_node(self) -> None:
        address = self.address()
        plugins = "" if self.configuration == "default" else switched_off(*OTHERS)
        if self.configuration == "same":
            plugins += "[plugin:proc]\n" + switched_off(*OTHER_FILES)
        self.url = f"http://{address['host']}:{address['ports']['netdata']}/host/{node_name()}/api/v1"
        stream = f"[stream]\n    enabled = yes\n    destination = tcp:{address['host']}:{address['ports']['netdata']}\n    api key = {KEY}\n"
        since = time.monotonic()
        every_s = self.interval_ns // 10**9
        self.daemon("netdata", False, self.node_path("netdata"), node_name(), "none", every_s, "    mode = none\n", plugins, stream)
        changed = time.monotonic()

        def stable() -> bool:
            nonlocal changed
            now = dimensions(get(f"{self.url}/charts"))
            if now != self.metrics:
                self.metrics, changed = now, time.monotonic()
            return now > 0 and time.monotonic() - changed > STABLE_S

        self.processes.wait_until("the parent has this node's values", stable)
        self.counts(since, lambda: self.seconds(since))

    def seconds(self, since: float) -> int | None:
        """The seconds of which the parent has values; None when they are more than it keeps."""
        age = int(time.monotonic() - since)
        return None if age > RETENTION_S else rows(get(f"{self.url}/data?chart={CHART}&after=-{age + 1}&points=0&format=csv"))

    def daemon(self, name: str, server: bool, base: Path, host: str, mode: str, every_s: int, web: str, plugins: str, stream: str) -> None:
        """Starts a daemon with all of its folders below `base`, in the foreground, as this user."""
        text = "[directories]\n"
        for setting, place in (("config", "etc"), ("cache", "cache"), ("lib", "lib"), ("home", "lib"), ("log", "log"), ("lock", "run")):
            (base / place).mkdir(parents=True, exist_ok=True)
            text += f"    {setting} = {base / place}\n"
        text += (
            f"[global]\n    hostname = {host}\n    run as user = {user()}\n[db]\n    mode = {mode}\n    update every = {every_s}\n"
            f"    retention = {RETENTION_S}\n[logs]\n    debug = none\n    access = none\n    health = none\n[web]\n{web}[health]\n    enabled = no\n"
            "[registry]\n    enabled = no\n[ml]\n    enabled = no\n[plugins]\n    statsd = no\n    netdata monitoring = no\n"
            f"    netdata monitoring extended = no\n{plugins}"
        )
        # Otherwise it sends statistics about itself to its makers.
        (base / "etc/.opt-out-from-anonymous-statistics").touch()
        config = self.write(base / "etc/netdata.conf", text)
        self.write(base / "etc/stream.conf", stream)
        # Only this user may read the folder of the run, and plugins start in the working folder.
        self.run(name, server, [installed("netdata", PACKAGES), "-D", "-c", config, "-u", user()], base / "out.log", cwd=base)


def switched_off(*names: str) -> str:
    return "".join(f"    {name} = no\n" for name in names)


def dimensions(charts: str) -> int:
    """The values of all charts."""
    return sum(len(chart["dimensions"]) for chart in json.loads(charts)["charts"].values())


def rows(csv: str) -> int:
    """The rows of a chart that have values: those of seconds without are `null`."""
    return sum(bool(row.strip()) and "null" not in row for row in csv.splitlines()[1:])
