"""An installation of Wholegrain in a folder of its own: certificates, a server, agents."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from harness import BenchError, Http, Json, cpu_ns, free_port, memory_kb, wait_until
from monitors.base import output_of, ours
from monitors.processes import Process, Processes, exit_status, tail

AGENT = "probe"
ANSWER_MAX_S = 300.0
# The server is idle when it uses less CPU than this for this time: its merger runs every ten seconds.
IDLE_S, IDLE_CORES = 12.0, 0.05
BUSY_MAX_S = 900


class Installation:
    """A context: what it started is stopped, and its folder removed, at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wholegrain-bench")
        self.folder = Path(self._folder.name)
        self.processes = Processes()
        self.mqtt_port, self.http_port = free_port(), free_port()
        output_of([ours("wholegrain"), "init", "--mqtt-port", str(self.mqtt_port), "--http-port", str(self.http_port), self.folder])
        self.issue_certificate(AGENT)
        self.http = self.api()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
        self._folder.cleanup()

    def issue_certificate(self, agent: str) -> None:
        output_of([ours("wholegrain"), "ca", "agent", agent, "--dir", self.folder])

    @property
    def client_env(self) -> dict[str, str]:
        return dict(os.environ) | {"WHOLEGRAIN_CLIENT": str(self.folder / "client.toml")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command-line client."""
        return subprocess.run([ours("wholegrain"), *words], env=self.client_env, capture_output=True, text=True)

    def answer(self, *words: str) -> str:
        """The output of the command-line client, which has to succeed."""
        result = self.run(*words)
        if result.returncode:
            raise BenchError(f"wholegrain {' '.join(words)} failed: {result.stderr.strip()}")
        return result.stdout

    def api(self, token: str = "") -> Http:
        """Requests to the server, with the administrator's token unless there is another."""
        tls = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        token = token or (self.folder / "token").read_text().strip()
        return Http(http.client.HTTPSConnection("localhost", self.http_port, timeout=ANSWER_MAX_S, context=tls), {"Authorization": f"Bearer {token}"})

    def metric(self, name: str) -> float:
        """A metric of the server, without `wholegrain_server_` before its name."""
        lines = self.http.get("/metrics").decode().splitlines()
        found = next((line for line in lines if line.split(" ")[0] == f"wholegrain_server_{name}"), None)
        if found is None:
            raise BenchError(f"the server has no metric {name}")
        return float(found.split()[-1])

    def configure(self, table: str, **settings: str) -> None:
        """Changes settings of the server's configuration, and adds those that are not there."""
        path = self.folder / "server/server.toml"
        text = path.read_text()
        heading = f"[{table}]\n"
        if heading not in text:
            text += f"\n{heading}"
        before, after = text.split(heading, 1)
        body, bracket, rest = after.partition("\n[")
        for key in settings:
            body = re.sub(rf"(?m)^{key} *=.*\n?", "", body)
        path.write_text(before + heading + "".join(f"{key} = {value}\n" for key, value in settings.items()) + body + bracket + rest)

    def open_plain_port(self) -> int:
        """Lets clients connect without authentication, with TLS and on a port without it: the port."""
        port = free_port()
        self.configure("mqtt", listen=f'"0.0.0.0:{port}"', tls_listen=f'"0.0.0.0:{self.mqtt_port}"', anonymous="true")
        return port

    def launch_server(self) -> Process:
        """Starts the server and does not wait for it."""
        command = [ours("wholegrain"), "server", "--config", str(self.folder / "server/server.toml")]
        self.processes.start("server", False, command, self.folder / "server.log")
        return self.processes.all[-1]

    def start_server(self) -> Process:
        server = self.launch_server()
        self.processes.wait_until("the server responds", lambda: bool(self.http.get("/healthz")))
        return server

    def wait_until_idle(self, server: Process) -> float:
        """Waits until everything is sealed and merged; how long it took, s."""
        begun = time.monotonic()
        while True:
            used = cpu_s(server)
            time.sleep(IDLE_S)
            self.processes.check("waiting until the server is idle")
            if cpu_s(server) - used < IDLE_CORES * IDLE_S and self.metric("journal_bytes") == 0:
                return time.monotonic() - begun
            if time.monotonic() - begun > BUSY_MAX_S:
                raise BenchError(f"the server was still busy {BUSY_MAX_S} s after the last reading")

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
        """Ends a process; an error when it does not end cleanly."""
        process.child.terminate()
        status = process.child.wait()
        self.processes.all.remove(process)
        if status:
            raise BenchError(f"{process.name} did not stop cleanly ({exit_status(status)}): {tail(process.log)}")

    def kill(self, process: Process) -> None:
        process.child.kill()
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
