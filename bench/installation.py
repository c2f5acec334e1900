"""An installation of Wholegrain in a folder of its own: certificates, a server, agents."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from harness import HTTP_TIMEOUT_S, Json, cpu_ns, free_port, memory_kb, wait_until
from monitors.base import output_of, ours
from monitors.processes import Process, Processes

AGENT = "probe"


class Installation:
    """A context: what it started is stopped, and its folder removed, at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wholegrain-bench")
        self.folder = Path(self._folder.name)
        self.processes = Processes()
        self.mqtt_port, self.http_port = free_port(), free_port()
        output_of([ours("wholegrain"), "init", "--mqtt-port", str(self.mqtt_port), "--http-port", str(self.http_port), self.folder])
        output_of([ours("wholegrain"), "ca", "agent", AGENT, "--dir", self.folder])

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
        self._folder.cleanup()

    @property
    def client_env(self) -> dict[str, str]:
        return dict(os.environ) | {"WHOLEGRAIN_CLIENT": str(self.folder / "client.toml")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command-line client."""
        return subprocess.run([ours("wholegrain"), *words], env=self.client_env, capture_output=True, text=True)

    def metric(self, name: str) -> float | None:
        """A metric of the server; None when it does not respond."""
        request = urllib.request.Request(f"https://localhost:{self.http_port}/metrics")
        request.add_header("Authorization", f"Bearer {(self.folder / 'token').read_text().strip()}")
        authority = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=authority))
        try:
            with opener.open(request, timeout=HTTP_TIMEOUT_S) as response:
                lines = response.read().decode().splitlines()
        except OSError:
            return None
        return next((float(line.split()[-1]) for line in lines if line.split(" ")[0] == name), None)

    def set_store(self, line: str) -> None:
        """Replaces the table of the store in the server's configuration by one setting."""
        config = self.folder / "server/server.toml"
        text = re.sub(r"(?m)^\[store\]\n(?:[^\[\n].*\n|\n)*", "", config.read_text())
        config.write_text(f"{text.rstrip()}\n[store]\n{line}\n")

    def start_server(self) -> Process:
        command = [ours("wholegrain"), "server", "--config", str(self.folder / "server/server.toml")]
        self.processes.start("server", False, command, self.folder / "server.log")
        # 1: the response says that there is no sensor yet.
        self.processes.wait_until("the server responds", lambda: self.run("sensors", "--format", "json").returncode in (0, 1))
        return self.processes.all[-1]

    def start_agent(self, sources: str, mqtt: str = "") -> Process:
        """Starts the agent with these sources and settings of its connection; returns when the server has its first readings."""
        text = (
            f'name = "{AGENT}"\n[mqtt]\nurl = "mqtts://localhost:{self.mqtt_port}"\nca = "{self.folder}/ca.pem"\ncert = "{self.folder}/agents/{AGENT}.pem"\n'
            f'key = "{self.folder}/agents/{AGENT}.key"\n{mqtt}[spool]\ndir = "{self.folder}/spool"\n[api]\nsocket = "{self.folder}/agent.sock"\n{sources}'
        )
        config = self.folder / "agent.toml"
        config.write_text(text)
        self.processes.start("agent", False, [ours("wholegrain-agent"), "--config", str(config)], self.folder / "agent.log")
        agent = self.processes.all[-1]
        wait_until(lambda: self.run("query", f"/{AGENT}/**", "--from", "-1m", "--limit", "1").returncode == 0, "the agent's first readings on the server")
        return agent

    def stop(self, process: Process) -> None:
        process.child.terminate()
        process.child.wait()
        self.processes.all.remove(process)

    def status(self) -> Json:
        """The agent's own status."""
        status: Json = json.loads(self.run("ctl", "--socket", str(self.folder / "agent.sock"), "status", "--format", "json").stdout)
        return status


def cpu_s(process: Process) -> float:
    return cpu_ns(process.child.pid) / 1e9


def rss_kb(process: Process) -> int:
    return memory_kb(process.child.pid, "status", "VmRSS")
