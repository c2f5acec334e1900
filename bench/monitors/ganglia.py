"""Ganglia: a gmond that samples and sends by unicast to one that only receives, as its documents advise for clusters without multicast. It has periods
of whole seconds, and reports nothing by which its ticks could be counted."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from harness import HTTP_TIMEOUT_S, BenchError, free_port

from .base import Monitor, installed, node_name, version_of, whole

PROGRAM = ("gmond", "ganglia-monitor")
# Modules, their files and their metrics: the values of meminfo, vmstat and stat.
SAME = (
    ("cpu_module", "modcpu.so", "^cpu_(user|nice|system|idle|wio|intr|sintr|steal)$"),
    ("multicpu_module", "modmulticpu.so", "^multicpu_([a-z]+)([0-9]+)$"),
    ("mem_module", "modmem.so", "^(mem|swap)_(.+)$"),
)
# Other files of /proc that our agent reads by default.
FURTHER = (("load_module", "modload.so", "^load_(.+)$"), ("net_module", "modnet.so", "^(bytes|pkts)_(in|out)$"))


class Ganglia(Monitor):
    name, configurations, shortest_ns = "ganglia", ("default", "same"), 10**9

    @classmethod
    def version(cls) -> str:
        return version_of(installed(*PROGRAM), "--version")

    @classmethod
    def check_interval(cls, interval_ns: int) -> None:
        whole(interval_ns, 10**9, "Ganglia's periods are whole seconds")

    def start_server(self) -> None:
        address = self.announce(udp=free_port(), tcp=free_port())
        ports = address["ports"]
        channels = ((f"{kind}_{word}_channel", ports[kind]) for kind, word in (("udp", "recv"), ("tcp", "accept")))
        text = head("server", receives=True) + "".join(f"{name} {{ port = {port} bind = {self.listen} }}\n" for name, port in channels)
        config = self.write(self.server_path("gmond.conf"), text)
        self.run("gmond (receives)", True, [installed(*PROGRAM), "-f", "-c", config], self.server_path("gmond.log"))
        self.processes.wait_until("the receiving gmond responds", lambda: bool(xml(address["host"], ports["tcp"])))

    def start_node(self) -> None:
        address, folder = self.address(), libraries()
        host, ports = address["host"], address["ports"]
        modules = SAME + (FURTHER if self.configuration == "default" else ())
        text = head(node_name(), receives=False) + f"udp_send_channel {{ host = {host} port = {ports['udp']} ttl = 1 }}\n"
        text += "".join(f'modules {{ module {{ name = "{module}" path = "{folder}/{file}" }} }}\n' for module, file, _ in modules)
        seconds = self.interval_ns // 10**9
        text += f"collection_group {{\n  collect_every = {seconds}\n  time_threshold = {seconds}\n"
        # Without a threshold each value is sent in each period.
        text += "".join(f'  metric {{ name_match = "{metrics}" value_threshold = 0 }}\n' for _, _, metrics in modules) + "}\n"
        config = self.write(self.node_path("gmond.conf"), text)
        self.run("gmond", False, [installed(*PROGRAM), "-f", "-c", config], self.node_path("gmond.log"))
        # Each value arrives within a period; after two their number is final.
        ready = time.monotonic() + 2 * (seconds + 0.5)

        def complete() -> bool:
            before, self.metrics = self.metrics, metrics_of(xml(host, ports["tcp"]), node_name())
            return self.metrics == before > 0 and time.monotonic() > ready

        self.processes.wait_until("gmond's values arrive", complete)


def head(name: str, receives: bool) -> str:
    mute, deaf = ("yes", "no") if receives else ("no", "yes")
    return (
        f"globals {{\n  daemonize = no\n  setuid = no\n  debug_level = 0\n  max_udp_msg_len = 1472\n  mute = {mute}\n  deaf = {deaf}\n  host_dmax = 0\n"
        f'  cleanup_threshold = 300\n  gexec = no\n  send_metadata_interval = 60\n  override_hostname = "{name}"\n}}\n'
        'cluster { name = "bench" }\nmodules {\n  module { name = "core_metrics" }\n}\n'
    )


def libraries() -> Path:
    """The folder of gmond's modules: /usr/lib/<architecture>/ganglia on Debian."""
    found = [path.parent for root in (Path("/usr/lib"), Path("/usr/lib64")) for path in (*root.glob("ganglia/modcpu.so"), *root.glob("*/ganglia/modcpu.so"))]
    if not found:
        raise BenchError(f"gmond's modules are not below /usr/lib: apt-get install {PROGRAM[1]}")
    return found[0]


def xml(host: str, port: int) -> str:
    """The document that a gmond sends to whoever connects."""
    with socket.create_connection((host, port), timeout=HTTP_TIMEOUT_S) as connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode(errors="replace")


def metrics_of(text: str, host: str) -> int:
    hosts = (part for part in text.split("<HOST ")[1:] if re.search(f'NAME="{re.escape(host)}"', part))
    return sum(part.count("<METRIC ") for part in hosts)
