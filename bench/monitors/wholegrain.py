"""Ours: the agent, pushing with QoS 1 over TLS to a server that seals blocks, or to a broker in its place that uses hardly any CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

from harness import CHECKOUT, BenchError, Json, free_port, interval_name

from .bare import Job
from .base import Monitor, installed, node_name, output_of, ours, user, version_of

AGENT, COMMAND, BROKER = "wholegrain-agent", "wholegrain", "mosquitto"
SHIPPED = CHECKOUT / "packaging/agent.toml"
# The files by which bare loops and all peers are compared.
SAME = '[sources.procfs]\ngroups = ["meminfo", "vmstat", "stat"]\n'
# As often as the agent reads the processes of jobs by itself.
TASKS_EVERY = "10s"


class Wholegrain(Monitor):
    name, configurations, shortest_ns = "wholegrain", ("default", "same", "job", "job-broker"), 10**6

    _job: Job | None = None

    @classmethod
    def version(cls) -> str:
        ours(COMMAND)
        return version_of(ours(AGENT), "--version")

    def start_server(self) -> None:
        broker = self.configuration == "job-broker"
        ports = {"mqtt": free_port(), "https": free_port()}
        host = self.announce(**ports)["host"]
        site = self.server_path()
        command = [ours(COMMAND), "init", "--mqtt-port", str(ports["mqtt"]), "--http-port", str(ports["https"]), "--host", host]
        output_of([*command, *(["--listen", self.listen] if self.role == "server" and not broker else []), site])
        if broker:
            text = (
                f"listener {ports['mqtt']} {self.listen}\nallow_anonymous true\nrequire_certificate true\ncafile {site}/ca.pem\n"
                f"certfile {site}/server/server.pem\nkeyfile {site}/server/server.key\nuser {user()}\n"
            )
            config = self.write(self.server_path("mosquitto.conf"), text)
            self.run(BROKER, True, [installed(BROKER, BROKER), "-c", config], self.server_path("mosquitto.log"))
            self.processes.wait_until("the broker listens", lambda: accepts(host, ports["mqtt"]))
            return
        config = self.server_path("server/server.toml")
        self.write(config, without_comments(config.read_text()))
        self.run("wholegrain server", True, [ours(COMMAND), "server", "--config", config], self.server_path("server.log"))
        client = dict(os.environ) | {"WHOLEGRAIN_CLIENT": str(site / "client.toml")}
        sensors = [ours(COMMAND), "sensors", "--format", "json"]
        # 1: the response says that there is none yet.
        self.processes.wait_until("the server responds", lambda: subprocess.run(sensors, env=client, capture_output=True).returncode in (0, 1))

    def start_node(self) -> None:
        address, site, name = self.address(), self.server_path(), node_name()
        output_of([ours(COMMAND), "ca", "agent", name, "--dir", site])
        interval = interval_name(self.interval_ns)
        self.socket = self.node_path("agent.sock")
        if self.configuration == "same":
            text = (
                f'name = "{name}"\n[defaults]\ninterval = "{interval}"\n[api]\nsocket = "{self.socket}"\n{SAME}[sources.agent]\nenabled = false\n'
            )
        else:
            text = default_settings(name, interval, self.socket, self.node_path("jobs.sock"))
        host = "localhost" if address["host"] == "127.0.0.1" else address["host"]
        text += (
            f'\n[mqtt]\nurl = "mqtts://{host}:{address["ports"]["mqtt"]}"\nca = "{site}/ca.pem"\ncert = "{site}/agents/{name}.pem"\n'
            f'key = "{site}/agents/{name}.key"\n[spool]\ndir = "{self.node_path("spool")}"\n'
        )
        with_job = self.configuration.startswith("job")
        if with_job:
            text += f'[[jobs.rule]]\nmetrics = ["**"]\nevery = "{interval}"\n[[jobs.rule]]\nmetrics = ["tasks/**"]\nevery = "{TASKS_EVERY}"\n'
            text = self.with_job(text)
        config = self.write(self.node_path("agent.toml"), without_comments(text))
        self.run(AGENT, False, [ours(AGENT), "--config", config], self.node_path("agent.log"))
        status: Json = {}

        def acknowledged() -> bool:
            status.update(self.status())
            has_job = any("job/" in group["topic"] for group in status["groups"])
            return bool(status["acknowledged"] > 0 and (has_job or not with_job))

        self.processes.wait_until("the server acknowledges the agent's first readings", acknowledged)
        # Of the sensors that are read less often only the CPU time counts.
        self.metrics = sum(group["sensors"] for group in status["groups"] if group["interval_ns"] == self.interval_ns)
        if not self.metrics:
            raise BenchError(f"the agent samples nothing at {interval}: {status}")

    def with_job(self, text: str) -> str:
        """The settings for a job: a resource manager's, in whose cgroups this process is, or else one that is made for the workload."""
        if "SLURM_JOB_ID" in os.environ:
            return text
        self._job = job = Job()
        self.job = job.about["task_files"]
        self.processes.helpers.add(job.process.pid)
        text = replaced(text, "[jobs]\n", f"[jobs]\nhierarchies = {json.dumps(job.about['links'])}\n")
        return text + f'[roots]\ncgroup = "{job.about["root"]}"\n'

    def status(self) -> Json:
        output = subprocess.run([ours(COMMAND), "ctl", "--socket", str(self.socket), "status", "--format", "json"], capture_output=True, text=True)
        status: Json = json.loads(output.stdout)
        return status

    def ticks(self) -> tuple[int, int] | None:
        if not self.has_node:
            return None
        status = self.status()
        return status["samples"], status["missed_ticks"]

    def stop(self) -> None:
        super().stop()
        if self._job:
            self._job.stop()


def accepts(host: str, port: int) -> bool:
    with socket.create_connection((host, port), timeout=1):
        return True


def default_settings(name: str, interval: str, socket_path: Path, jobs: Path) -> str:
    """The packages' configuration with this run's name, paths and period; everything else stays."""
    text = SHIPPED.read_text()
    for old, new in (
        ('\ninterval = "1s"', f'\ninterval = "{interval}"'),
        ('"/run/wholegrain/agent.sock"', f'"{socket_path}"'),
        ('"/run/wholegrain/jobs.sock"', f'"{jobs}"'),
        ("\n# [sources.agent]\n", f'\n[sources.agent]\ninterval = "{interval}"\n'),
        ('"/var/lib/wholegrain-agent/jobs"', f'"{jobs.with_suffix(".records")}"'),
        ('# hooks = "/run/wholegrain-hooks"', 'hooks = ""'),
        ('# name = "node0042"', f'name = "{name}"'),
    ):
        text = replaced(text, old, new)
    return text


def replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise BenchError(f"packaging/agent.toml has no {old!r} any more")
    return text.replace(old, new, 1)


def without_comments(text: str) -> str:
    lines = (line.split(" # ")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"
