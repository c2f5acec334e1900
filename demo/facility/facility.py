"""Runs the demonstration of a facility: a plant of four protocols, an agent that polls it, a server, and virtual sensors.

- Input: the directory of the demonstration (made by the first start), the programs, the plug-ins.
- Output: a server with sensors below /plant, until SIGINT or SIGTERM.
- Never: a file outside of the directory; a listener on an address that other machines reach; a process that outlives this one.
"""

import argparse
import ctypes
import json
import os
import pathlib
import secrets
import signal
import socket
import string
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Each peer is a process, so that one can fail without the others.
PEERS = {
    "pdus": "SNMP, power of the racks",
    "loops": "Modbus TCP, water of the cooling loops",
    "plant_controller": "BACnet/IP, pumps and cooling tower",
    "building": "REST, building and weather",
}
PORTS = ("snmp", "modbus", "bacnet", "rest")
# The values that virtual sensors need, one of each protocol.
FIRST_SENSORS = ("/plant/racks/*/power", "/plant/cooling/*/flow", "/plant/cooling/*/power", "/plant/building/meter/*/power")
# What a peer writes when it listens; the second is of snmpsim, for its last unit.
READY = (b"ready\n", b"Listening at UDP/IPv4 endpoint 127.0.9.4")
READY_S = 120
STOP_S = 30
LOG_BYTES_MAX = 16 << 20


class Failure(Exception):
    """What went wrong, for the person at the terminal."""


def private_file(path: pathlib.Path, text: str) -> None:
    """Writes a file that only its owner can read, also while it is written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text)


def private_directory(path: pathlib.Path) -> pathlib.Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def free_port() -> int:
    """A port of 127.0.0.1 without a listener of TCP or UDP."""
    while True:
        with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def ends_with_parent() -> None:
    """In a new process: the kernel ends it if this program is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Program:
    """A process of the demonstration, with its log and its number in a file."""

    def __init__(self, directory: pathlib.Path, name: str, command: list):
        self.name, self.command = name, [str(part) for part in command]
        self.log, self.pid_file = directory / "log" / f"{name}.log", directory / "run" / f"{name}.pid"
        self.process, self.restart_at, self.log_start = None, None, 0

    def start(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.old"))
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            # A session of its own: Ctrl-C reaches this program only, which ends the others in order.
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=ends_with_parent
            )
        self.pid_file.write_text(f"{self.process.pid}\n")
        self.restart_at = None

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def is_ready(self) -> bool:
        """Whether it has written since its start that it listens."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            text = log.read()
        return any(word in text for word in READY)

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-8:]
        return "\n".join(f"  {line}" for line in lines) or "  (its log is empty)"

    def stop(self) -> None:
        self.pid_file.unlink(missing_ok=True)
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            print(f"{self.name} did not end within {STOP_S} s and was killed; see {self.log}", flush=True)


class Facility:
    """The programs of the demonstration."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.directory = options, options.dir.resolve()
        self.wholegrain, self.agent_program = options.bin / "wholegrain", options.bin / "wholegrain-agent"
        self.peers, self.services = [], []

    def prepare(self) -> None:
        """Makes the directory: an installation, the settings of the peers, the agent's configuration and credentials."""
        for program in (self.wholegrain, self.agent_program):
            if not program.is_file():
                raise Failure(f"{program} does not exist: `make build` makes it")
        for name in ("snmp", "modbus", "bacnet", "rest"):
            if not (self.options.plugins / f"{name}.so").is_file():
                raise Failure(f"{self.options.plugins}/{name}.so does not exist: `make plugins` makes it")
        is_own = (self.directory / "peers/settings.json").exists()
        if (self.directory / "server/server.toml").exists() and not is_own:
            raise Failure(f"{self.directory} holds another installation; name another directory with --dir")
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for folder in ("log", "run", "peers"):
            private_directory(self.directory / folder)
        settings = self.settings()
        ports = ["--mqtt-port", settings["mqtt_port"], "--http-port", settings["http_port"]]
        command = [self.wholegrain, "init", self.directory, "--agent", "plant", *ports]
        made = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise Failure(f"wholegrain init {self.directory}: {made.stderr.strip()}")
        self.write_agent(settings)

    def settings(self) -> dict:
        """Ports and secrets. Those of the server and the secrets are kept from the first start; ports of peers are new unless given."""
        path = self.directory / "peers/settings.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        settings = {"seed": self.options.seed}
        for name in ("mqtt", "http"):
            settings[f"{name}_port"] = kept.get(f"{name}_port") or getattr(self.options, f"{name}_port") or free_port()
        for name in PORTS:
            settings[f"{name}_port"] = getattr(self.options, f"{name}_port") or free_port()
        settings["snmp_user"] = "monitor"
        for name in ("snmp_password", "rest_token"):
            settings[name] = kept.get(name) or secrets.token_hex(16)
        private_file(path, json.dumps(settings, indent=1) + "\n")
        return settings

    def write_agent(self, settings: dict) -> None:
        credentials = private_directory(self.directory / "agent/credentials")
        pdus = {"user": settings["snmp_user"], "auth": "sha256", "auth_password": settings["snmp_password"]}
        private_file(credentials / "pdus", "".join(f'{key} = "{value}"\n' for key, value in pdus.items()))
        private_file(credentials / "building", f'token = "{settings["rest_token"]}"\n')
        values = {"plugins": self.options.plugins.resolve(), "interval": self.options.interval}
        values |= {key: value for key, value in settings.items() if key.endswith("_port")}
        template = string.Template((HERE / "agent.toml").read_text())
        (self.directory / "agent/agent.toml").write_text(template.substitute(values))

    def client(self, *arguments: str) -> subprocess.CompletedProcess:
        """Runs `wholegrain` as the administrator of this installation."""
        environment = os.environ | {"WHOLEGRAIN_CLIENT": str(self.directory / "client.toml")}
        return subprocess.run([str(self.wholegrain), *arguments], env=environment, capture_output=True, text=True, check=False)

    def start(self) -> None:
        directory, settings = self.directory, self.directory / "peers/settings.json"
        self.peers = [Program(directory, name, [sys.executable, "-u", HERE / f"peers/{name}.py", settings]) for name in PEERS]
        for peer in self.peers:
            peer.start()
        server = Program(directory, "server", [self.wholegrain, "server", "--config", directory / "server/server.toml"])
        agent = Program(directory, "agent", [self.agent_program, "--config", directory / "agent/agent.toml"])
        self.services = [server, agent]
        server.start()
        self.wait("all devices listen", lambda: all(peer.is_ready() for peer in self.peers))
        self.wait("the server answers", lambda: self.client("sensors", "/no/such/sensor").returncode in (0, 1))
        agent.start()
        self.wait("all devices have sensors", lambda: all(self.client("sensors", sensor).returncode == 0 for sensor in FIRST_SENSORS))
        defined = self.client("config", "virtual", "apply", str(HERE / "virtual.toml"), "--at", "/plant")
        if defined.returncode != 0:
            raise Failure(f"the virtual sensors cannot be defined: {defined.stderr.strip()}")

    def wait(self, what: str, condition) -> None:
        deadline = time.monotonic() + READY_S
        while not condition():
            self.look_after()
            if time.monotonic() > deadline:
                raise Failure(f"not within {READY_S} s: {what}; see {self.directory}/log")
            time.sleep(0.2)

    def look_after(self) -> None:
        """Ends the demonstration if server or agent have ended; starts a peer again that has ended."""
        for service in self.services:
            if service.has_ended():
                raise Failure(f"the {service.name} has ended by itself; the end of {service.log}:\n{service.tail()}")
        for peer in self.peers:
            if not peer.has_ended():
                continue
            now = time.monotonic()
            if peer.restart_at is None:
                peer.restart_at = now + self.options.restart_after
                message = f"{peer.name} ({PEERS[peer.name]}) has ended: its sensors have gaps; it starts again in {self.options.restart_after:g} s"
                print(message, flush=True)
            elif now >= peer.restart_at:
                peer.start()
                print(f"{peer.name} runs again", flush=True)

    def stop(self) -> None:
        """Ends the agent first, so that nothing it has read is lost, then the server, then the plant."""
        for program in [*reversed(self.services), *self.peers]:
            program.stop()

    def hints(self) -> str:
        shown = self.options.dir
        return f"""
The facility runs: {", ".join(PEERS.values())}.

  export WHOLEGRAIN_CLIENT={shown}/client.toml PATH={self.options.bin}:$PATH
  wholegrain sensors '/plant/**'                                     # sensors of four protocols, and virtual ones
  wholegrain query /plant/power /plant/heat /plant/inlet --from -5m --every 30s
  wholegrain query /plant/efficiency_5min --from -1m                 # about 90 %: what the water removes of the power
  wholegrain watch /plant/efficiency /plant/pue
  {sys.executable} {os.path.relpath(HERE)}/plant.py --seed {self.options.seed} --every 30 --from -300   # the truth, to compare with
  kill $(cat {shown}/run/loops.pid)      # a device fails: gaps in cooling/loop* and heat, the rest goes on; it is back after {self.options.restart_after:g} s

Ctrl-C stops all of it. The data stays in {shown}.
"""


def parsed() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description="A plant with SNMP, Modbus, BACnet and REST devices, monitored by Wholegrain")
    root = pathlib.Path("target/release")
    arguments.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("var-facility"), help="everything is below it")
    arguments.add_argument("--bin", type=pathlib.Path, default=root, help="folder of wholegrain and wholegrain-agent")
    arguments.add_argument("--plugins", type=pathlib.Path, default=root / "plugins", help="folder of NAME.so")
    arguments.add_argument("--seed", type=int, default=1, help="the same seed gives the same plant at the same time")
    arguments.add_argument("--interval", default="5s", help="between two polls of a device")
    arguments.add_argument("--restart-after", type=float, default=60, metavar="S", help="a device that has ended starts again")
    for name in (*PORTS, "mqtt", "http"):
        kept = "; kept from the first start" if name in ("mqtt", "http") else ""
        arguments.add_argument(f"--{name}-port", type=int, help=f"default: a free one{kept}")
    return arguments.parse_args()


def main() -> int:
    facility = Facility(parsed())

    def end(number, _frame):
        # A second signal does not interrupt the end.
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        facility.prepare()
        facility.start()
        print(facility.hints(), flush=True)
        while True:
            facility.look_after()
            time.sleep(0.2)
    except KeyboardInterrupt:
        return 0
    except (Failure, OSError) as failure:
        print(f"demo-facility: {failure}", file=sys.stderr, flush=True)
        return 1
    finally:
        facility.stop()


if __name__ == "__main__":
    sys.exit(main())
