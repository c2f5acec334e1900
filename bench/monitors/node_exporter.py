"""Prometheus' node_exporter, scraped by a Prometheus server at the requested period.

A scrape has to end within its period, or it is discarded whole: Prometheus accepts a period of 1 ms, but one scrape takes a few milliseconds.
"""

from __future__ import annotations

import json
import time
import urllib.parse

from harness import free_port, get

from .base import Monitor, installed, node_name, version_of

EXPORTER = ("prometheus-node-exporter", "prometheus-node-exporter")
SERVER = ("prometheus", "prometheus")
# The values of meminfo, vmstat and stat.
SAME = (
    "--collector.disable-defaults", "--web.disable-exporter-metrics", "--collector.meminfo", "--collector.vmstat", "--collector.vmstat.fields=.*",
    "--collector.stat", "--collector.cpu", "--no-collector.cpu.guest",
)  # fmt: skip
# Other files of /proc that our agent reads by default.
FURTHER = (
    "--collector.loadavg", "--collector.netdev", "--collector.netdev.device-exclude=^$", "--collector.netstat",
    "--collector.netstat.fields=^(Ip|Tcp|Udp|TcpExt|IpExt)_.*$", "--collector.diskstats", "--collector.diskstats.device-exclude=^(ram|loop)[0-9]+$",
    "--collector.pressure",
)  # fmt: skip
# Values about the exporter itself.
OWN = ("node_scrape_collector_", "promhttp_")


class NodeExporter(Monitor):
    name, configurations, shortest_ns = "node_exporter", ("default", "same"), 10**7

    @classmethod
    def version(cls) -> str:
        exporter, server = (version_of(installed(*program), "--version") for program in (EXPORTER, SERVER))
        return f"{exporter}, scraped by Prometheus {server}"

    def start(self) -> None:
        # Where both are on one machine, the server knows the exporter before it is there.
        self.target = f"{self.own_host}:{free_port()}"
        super().start()

    def start_server(self) -> None:
        address = self.announce(http=free_port())
        targets = self.shared_path("targets")
        targets.mkdir(exist_ok=True)
        found = f'file_sd_configs: [{{files: ["{targets}/*.json"], refresh_interval: 1s}}]'
        if self.has_node:
            found = f'static_configs: [{{targets: ["{self.target}"]}}]'
        text = f"global:\n  scrape_interval: {self.interval_ns // 10**6}ms\nscrape_configs:\n  - job_name: node\n    {found}\n"
        config = self.write(self.server_path("prometheus.yml"), text)
        url = f"{address['host']}:{address['ports']['http']}"
        command = [
            installed(*SERVER), f"--config.file={config}", f"--storage.tsdb.path={self.server_path('data')}",
            f"--web.listen-address={self.listen}:{address['ports']['http']}",
        ]  # fmt: skip
        self.run("prometheus", True, command, self.server_path("prometheus.log"))
        self.processes.wait_until("Prometheus responds", lambda: bool(get(f"http://{url}/-/ready")))

    def start_node(self) -> None:
        further = FURTHER if self.configuration == "default" else ()
        command = [installed(*EXPORTER), *SAME, f"--web.listen-address={self.target}", *further]
        self.run("node_exporter", False, command, self.node_path("node_exporter.log"))

        def responds() -> bool:
            self.metrics = samples(get(f"http://{self.target}/metrics"))
            return self.metrics > 0

        self.processes.wait_until("node_exporter responds", responds)
        self.shared_path(f"targets/{node_name()}.json").write_text(json.dumps([{"targets": [self.target]}]))
        since = time.monotonic()
        self.processes.wait_until("Prometheus has scraped the node within a period", lambda: bool(self.scrapes()))
        self.counts(since, self.scrapes)

    def scrapes(self) -> int | None:
        """Successful scrapes, as Prometheus has stored them."""
        address = self.address()
        query = urllib.parse.quote(f'sum_over_time(up{{instance="{self.target}"}}[1h])')
        response = json.loads(get(f"http://{address['host']}:{address['ports']['http']}/api/v1/query?query={query}"))
        result = response["data"]["result"]
        return int(result[0]["value"][1]) if result else None


def samples(text: str) -> int:
    """Samples of an exposition in the text format, without those about the exporter."""
    return sum(bool(line.strip()) and not line.startswith(("#", *OWN)) for line in text.splitlines())
