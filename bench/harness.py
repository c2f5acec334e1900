"""What all benchmarks in Python share: intervals, waiting, ports, the use of processes, HTTP, and the files of results. Standard library only, so
that a compute node needs no more than Python."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import re
import socket
import statistics
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parent.parent
RESULTS = Path("target/bench")
UNITS = {"d": 86_400 * 10**9, "h": 3600 * 10**9, "min": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
FIGURE_UNITS = ("ns", "us", "ms", "s", "bytes", "kb", "mb", "mib", "percent")
POLL_S = 0.02
READY_MAX_S = 60.0
HTTP_TIMEOUT_S = 10.0
# Below the ports that systems give to outgoing connections.
PORTS = range(12_000, 30_000)
# The names that this process has taken, one for each port that it has received.
_NAMES: list[socket.socket] = []
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A benchmark cannot go on; the text says why and what to do."""


def parse_interval(text: str) -> int:
    """`1ms`, `1.5s`, `1h30min` in ns. A number without a unit is refused."""
    parts = re.findall(r"([0-9.]+)([a-z]+)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text or any(unit not in UNITS for _, unit in parts):
        raise BenchError(f'"{text}" is not a length of time: write a number with a unit ({", ".join(UNITS)}), such as 1ms or 10s')
    try:
        return round(sum(float(number) * UNITS[unit] for number, unit in parts))
    except ValueError as error:
        raise BenchError(f'"{text}" is not a length of time: write a number with a unit: {error}') from error


def interval_name(ns: int | None) -> str:
    """An interval as configurations have it: 1ms, 90s; empty for no monitor."""
    if ns is None:
        return ""
    return next((f"{ns // size}{unit}" for unit, size in UNITS.items() if ns >= size and ns % size == 0), "0s")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = READY_MAX_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"timeout after {seconds:g} s: {what}")
        time.sleep(POLL_S)


def free_port() -> int:
    """A TCP port on which nobody listens. Until the end of this process no test or benchmark of this machine receives it."""
    start = int.from_bytes(os.urandom(4), "little") % len(PORTS)
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        if _reserve(port):
            return port
    raise BenchError("no port is free")


def _reserve(port: int) -> bool:
    """Takes the name of the port, which free_port of testkit/src/port.rs takes, too: a socket without a file, kept until this process ends."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0wholegrain-port-{port}")
        name.listen()
    except OSError:
        name.close()
        return False
    _NAMES.append(name)
    return True


def get(url: str) -> str:
    """The body of the response to a plain GET."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=HTTP_TIMEOUT_S) as response:
        return str(response.read().decode(errors="replace"))


class Http:
    """Requests on one lasting connection."""

    def __init__(self, connection: http.client.HTTPConnection, headers: dict[str, str] | None = None) -> None:
        self.connection, self.headers = connection, headers or {}

    @contextlib.contextmanager
    def open(self, path: str, parameters: Sequence[tuple[str, str]] = (), method: str = "GET", body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
        """A response whose status is success. It is read to its end, so that the connection stays."""
        target = f"{path}?{urllib.parse.urlencode(parameters)}" if parameters else path
        try:
            self.connection.request(method, target, body, self.headers)
            response = self.connection.getresponse()
        except (ConnectionError, http.client.HTTPException):
            # The server closed the connection after an earlier request, or was restarted.
            self.connection.close()
            self.connection.request(method, target, body, self.headers)
            response = self.connection.getresponse()
        try:
            if not 200 <= response.status < 300:
                raise BenchError(f"{method} {target}: status {response.status}: {response.read().decode(errors='replace')[:300]}")
            yield response
            response.read()
        except BaseException:
            self.connection.close()
            raise

    def get(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> bytes:
        with self.open(path, parameters) as response:
            return response.read()


def cpu_ns(pid: int) -> int:
    """CPU time of a process with all of its threads; 0 when it is gone."""
    # The clock of a process, as clock_getcpuclockid(3) computes it.
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on; empty when the process is gone. The name before them may contain parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def children_cpu_ns(fields: Sequence[str]) -> int:
    """CPU time of the children that have ended and of theirs, by cutime and cstime."""
    return (int(fields[13]) + int(fields[14])) * (10**9 // _CLOCK_TICKS)


def memory_kb(pid: int, file: str, field: str) -> int:
    """A field in kB of /proc/<pid>/<file>: `VmRSS` of `status`, `Pss` of `smaps_rollup`."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def with_variable(name: str, value: str) -> list[int]:
    """The processes of this machine, but this one, that have a variable in their environment."""
    expected, found = f"{name}={value}".encode(), []
    for pid in processes():
        try:
            if pid != os.getpid() and expected in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def machine() -> Json:
    """Cores and memory, as all results have them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count() or 0, "memory_gib": memory >> 30}


def figure(name: str, values: float | Sequence[float], unit: str) -> Json:
    """One figure of a result: the median of its measurements, and their range."""
    each = [float(values)] if isinstance(values, (int, float)) else [float(value) for value in values]
    return {"name": name, "value": statistics.median(each), "unit": unit, "spread": [min(each), max(each)]}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(values)[round((len(values) - 1) * share)]


def time_text(ns: int) -> str:
    """A time as the API and the agent take it."""
    return f"{datetime.datetime.fromtimestamp(ns // 10**9, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{ns % 10**9:09}Z"


def timestamp_ns(text: str) -> int:
    """A time as the client and the agent print it, with up to nine digits of its second."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    at = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC)
    return int(at.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def line(what: str, value: object, aim: str = "") -> None:
    """Prints one figure with its aim."""
    print(f"  {what:<58} {value!s:>12}   {aim}", flush=True)


def aim(what: str, value: float, digits: int, *, at_most: float | None = None, at_least: float | None = None) -> bool:
    """Prints one figure with its aim; whether it is reached."""
    reached = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    text = f"at most {at_most:,g}" if at_most is not None else f"at least {at_least:,.10g}"
    line(what, f"{value:.{digits}f}", f"{text}: {'reached' if reached else 'MISSED'}")
    return reached


def figures_of(details: Any, path: str = "") -> list[Json]:
    """One figure for each number, and for each list of measurements. A name is the path to it, and a word of it the unit. A row of a list is named by its
    first text."""
    if isinstance(details, dict):
        return [found for key, value in details.items() for found in figures_of(value, f"{path}.{key}" if path else key)]
    if isinstance(details, list) and details and all(isinstance(row, dict) for row in details):
        named = {next((text for text in row.values() if isinstance(text, str)), str(at)): row for at, row in enumerate(details)}
        return figures_of(named, path)
    each = details if isinstance(details, list) else [details]
    if not each or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in each):
        return []
    unit = next((word for word in path.rsplit(".")[-1].split("_") if word in FIGURE_UNITS), "")
    return [figure(path, each, unit)]


def write_result(name: str, details: Json, figures: Sequence[Json] | None = None) -> None:
    """Writes target/bench/<name>.json: figures in the form that all benchmarks share, and details of this one."""
    figures = figures_of(details) if figures is None else figures
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = {"benchmark": name, "date": now, "command": f"wholegrain-bench {os.environ.get('WHOLEGRAIN_BENCH_COMMAND', name)}", "machine": machine()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(head | {"figures": list(figures)} | details, indent=2) + "\n")
