"""The systems that are compared, each with files and ports of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from harness import BenchError, Http, Json, bytes_below, cpu_ns, free_port, time_text, wait_until
from ingest import merge_days
from installation import ANSWER_MAX_S, Installation, rss_kb
from monitors.base import installed, output_of
from monitors.processes import Process, Processes

MS_NS = 1_000_000
MERGE_MAX_S = 120
# Number and sum of the readings of each sensor.
Sums = dict[str, tuple[int, float]]

# Sensors that are added up: counters of one unit, because sums of different units are refused. `TCPMemoryPressuresChrono` is a time.
BELOW = "net/netstat/TcpExt/"
STARTS = (
    "D", "P", "S", "TCPA", "TCPB", "TCPC", "TCPD", "TCPF", "TCPH", "TCPK", "TCPL", "TCPO", "TCPP", "TCPR", "TCPS", "TCPT", "TCPW", "TCPZ", "TW",
)  # fmt: skip


def is_summed(sensor: str) -> bool:
    return sensor.startswith(tuple(BELOW + start for start in STARTS))


@dataclass
class Span:
    """The first and the last time of all readings, ns since the Unix epoch."""

    from_ns: int
    to_ns: int


class System(ABC):
    """One system: empty when it is made, running until `close`. Queries return the body of the answer; how many values are in it is counted afterwards,
    so that the client's parser is not measured."""

    name: ClassVar[str]
    # Settings that are not its defaults, how it is written to and asked.
    configured: ClassVar[str]
    # The acknowledged data that a crash of the machine loses.
    durable: ClassVar[str]
    # Which files are its stored bytes, and which are not.
    counted: ClassVar[str]
    # Options of `replay`.
    replay: ClassVar[tuple[str, ...]] = ()
    process: Process
    http: Http
    # Where readings are sent.
    url: str

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """As the program reports it; a `BenchError` says what to install."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def flush_and_merge(self) -> None:
        """Returns when all is in files and these are merged, as the system does by itself in time."""

    @abstractmethod
    def stored(self) -> tuple[int, int]:
        """Bytes of the readings and their index, and of all files."""

    @abstractmethod
    def sums(self, node: str, span: Span) -> Sums: ...

    @abstractmethod
    def one_sensor(self, node: str, sensor: str, span: Span) -> bytes: ...

    @abstractmethod
    def windows(self, nodes: Sequence[str], span: Span, window_s: int) -> bytes:
        """Adds up the last values of the summed sensors in each window."""

    @abstractmethod
    def newest(self, nodes: Sequence[str], span: Span) -> bytes: ...

    @abstractmethod
    def count(self, body: bytes) -> int:
        """The values in an answer of one sensor or of windows."""

    @abstractmethod
    def count_newest(self, body: bytes) -> int: ...

    def cpu_ns(self) -> float:
        """CPU time since the beginning, with that of merges which another process did for it."""
        return cpu_ns(self.process.child.pid)

    def rss_kb(self) -> int:
        return rss_kb(self.process)


class Wholegrain(System):
    name = "wholegrain"
    configured = (
        'seal_after = "5s", else default; written to by MQTT 5 with quality of service 1, without TLS, the agent\'s own batches, at most 64 unacknowledged; '
        "asked at /api/v1/query (Arrow) and /api/v1/newest (JSON) with TLS and a token"
    )
    durable = "acknowledged after fdatasync: a crash takes nothing"
    counted = "the Parquet blocks, sealed and merged as after the day is over; not the windows of tiers, the catalogue and the list of sensors"

    @classmethod
    def version(cls) -> str:
        return output_of([os.environ["WHOLEGRAIN_BENCH"], "--version"]).split()[-1]

    def __init__(self, folder: Path) -> None:
        self.site, self.before_ns = Installation(), 0.0
        self.site.configure("store", seal_after='"5s"')
        self.url = f"mqtt://127.0.0.1:{self.site.open_plain_port()}"
        self.process, self.http = self.site.start_server(), self.site.api()

    def close(self) -> None:
        self.site.__exit__()

    def flush_and_merge(self) -> None:
        """The merge of a day comes when it has been over for two hours: it is made now, by the store's own code in another process."""
        wait_until(lambda: self.site.metric("journal_bytes") == 0, "the journal is sealed", MERGE_MAX_S)
        self.before_ns += super().cpu_ns()
        self.site.stop(self.process)
        self.before_ns += merge_days(self.site)
        self.process = self.site.start_server()
        # The CPU of the start belongs to no reading.
        self.before_ns -= super().cpu_ns()

    def cpu_ns(self) -> float:
        return self.before_ns + super().cpu_ns()

    def stored(self) -> tuple[int, int]:
        store = self.site.folder / "server/store"
        return bytes_below(store / "blocks"), bytes_below(store)

    def query(self, patterns: Sequence[str], span: Span, *more: tuple[str, str]) -> bytes:
        # The end is not within.
        window = [("from", time_text(span.from_ns)), ("to", time_text(span.to_ns + 1)), ("format", "arrow")]
        return self.http.get("/api/v1/query", [*window, *(("pattern", pattern) for pattern in patterns), *more])

    def sums(self, node: str, span: Span) -> Sums:
        prefix = f"/bench/{node}/"
        sensors = json.loads(self.http.get("/api/v1/sensors", [("pattern", f"{prefix}**")]))["sensors"]
        scales = {sensor["path"]: sensor.get("scale") or 1.0 for sensor in sensors}
        sums: Sums = {}
        for batch in pa.ipc.open_stream(self.query([f"{prefix}**"], span)):
            for sensor, value in zip(batch.column(0).to_pylist(), batch.column(2).to_pylist()):
                if value is not None:
                    count, total = sums.get(name := sensor.removeprefix(prefix), (0, 0.0))
                    # Integers arrive scaled: divide them by the scale.
                    sums[name] = count + 1, total + round(value / scales.get(sensor, 1.0))
        return sums

    def one_sensor(self, node: str, sensor: str, span: Span) -> bytes:
        return self.query([f"/bench/{node}/{sensor}"], span)

    def windows(self, nodes: Sequence[str], span: Span, window_s: int) -> bytes:
        patterns = [f"/bench/*/{BELOW}{start}*" for start in STARTS]
        return self.query(patterns, span, ("every", f"{window_s}s"), ("agg", "last"), ("across", "sum"))

    def newest(self, nodes: Sequence[str], span: Span) -> bytes:
        return self.http.get("/api/v1/newest", [("pattern", f"/bench/{node}/**") for node in nodes])

    def count(self, body: bytes) -> int:
        return sum(batch.num_rows for batch in pa.ipc.open_stream(body))

    def count_newest(self, body: bytes) -> int:
        # A sensor that has only had gaps has a newest reading without a value.
        return sum(reading["value"] is not None for reading in json.loads(body)["readings"])


class WholegrainSingles(Wholegrain):
    name = "wholegrain-singles"
    configured = Wholegrain.configured.replace("the agent's own batches", "one sample a batch")
    replay = ("--singles",)


class PromqlSystem(System):
    """A system that takes remote write and PromQL."""

    program: ClassVar[str]
    ready: ClassVar[str]

    @classmethod
    def version(cls) -> str:
        # VictoriaMetrics as Debian packages it reports no version.
        installed(cls.program, cls.program)
        result = subprocess.run([cls.program, "--version"], capture_output=True, text=True)
        words = (result.stdout + result.stderr).splitlines()
        return words[0].strip() if words else output_of(["dpkg-query", "--show", "--showformat=${Version}", cls.program])

    @abstractmethod
    def options(self, port: int, folder: Path) -> list[str]:
        """Arguments of the program, with files in a folder."""

    def __init__(self, folder: Path) -> None:
        port, self.processes, self.data = free_port(), Processes(), folder / "data"
        self.processes.start(self.name, False, [self.program, *self.options(port, folder)], folder / "log")
        self.process = self.processes.all[0]
        self.http = Http(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_MAX_S))
        self.url = f"http://127.0.0.1:{port}/api/v1/write"
        self.processes.wait_until(f"{self.name} responds", self.responds)

    def responds(self) -> bool:
        try:
            return bool(self.http.get(self.ready))
        except BenchError:
            return False

    def close(self) -> None:
        self.processes.stop()

    def query(self, path: str, query: str, *parameters: tuple[str, str]) -> bytes:
        return self.http.get(f"/api/v1/{path}", [("query", query), *parameters])

    def sums(self, node: str, span: Span) -> Sums:
        found: Sums = {}
        query = f'{{node="{node}"}}[{range_text(span)}]'
        for series in series_of(self.query("query", query, ("time", seconds(span.to_ns)))):
            values = [float(value) for _, value in series["values"]]
            if (name := series["metric"]["__name__"]) in found:
                raise BenchError(f"{self.name}: {name} is there twice")
            found[name] = len(values), sum(values)
        return found

    def one_sensor(self, node: str, sensor: str, span: Span) -> bytes:
        return self.query("query", f'{metric(sensor)}{{node="{node}"}}[{range_text(span)}]', ("time", seconds(span.to_ns)))

    def windows(self, nodes: Sequence[str], span: Span, window_s: int) -> bytes:
        names = f"{BELOW.replace('/', '_')}({'|'.join(STARTS)}).*"
        query = f'sum(last_over_time({{__name__=~"{names}",node=~"{"|".join(nodes)}"}}[{window_s}s]))'
        window = window_s * 10**9
        first, last = ((ns // window + 1) * window for ns in (span.from_ns, span.to_ns))
        return self.query("query_range", query, ("start", seconds(first)), ("end", seconds(last)), ("step", f"{window_s}s"))

    def newest(self, nodes: Sequence[str], span: Span) -> bytes:
        return self.query("query", f'{{node=~"{"|".join(nodes)}"}}', ("time", seconds(span.to_ns)))

    def count(self, body: bytes) -> int:
        series = series_of(body)
        return len(series[0]["values"]) if series else 0

    def count_newest(self, body: bytes) -> int:
        return len(series_of(body))


class VictoriaMetrics(PromqlSystem):
    name, program, ready = "victoriametrics", "victoria-metrics", "/health"
    configured = (
        "-retentionPeriod=100y -search.latencyOffset=0s -search.disableCache, else as packaged; written to by remote write (snappy), a request for each "
        "second of a node; asked at /api/v1/query and /api/v1/query_range"
    )
    durable = "in memory for up to 5 s before it is written: a crash takes what came since"
    counted = "data/ and indexdb/ after force_flush and force_merge; not its caches"
    MERGED: ClassVar[str] = "has been successfully finished"

    def options(self, port: int, folder: Path) -> list[str]:
        settings = ["-retentionPeriod=100y", "-search.latencyOffset=0s", "-search.disableCache"]
        return [f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}", *settings]

    def flush_and_merge(self) -> None:
        self.http.get("/internal/force_flush")
        before = self.merges()
        self.http.get("/internal/force_merge")
        wait_until(lambda: self.merges() > before and self.active_merges() == 0, "VictoriaMetrics has merged", MERGE_MAX_S)

    def merges(self) -> int:
        return self.process.log.read_text().count(self.MERGED)

    def active_merges(self) -> float:
        rows = self.http.get("/metrics").decode().splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith("vm_active_merges"))

    def stored(self) -> tuple[int, int]:
        return sum(bytes_below(self.data / name) for name in ("data", "indexdb")), bytes_below(self.data)


class Prometheus(PromqlSystem):
    name, program, ready = "prometheus", "prometheus", "/-/ready"
    configured = (
        "--web.enable-remote-write-receiver --web.enable-admin-api --storage.tsdb.retention.time=100y, nothing scraped; written to by remote write "
        "(snappy), a request for each second of a node; asked at /api/v1/query and /api/v1/query_range"
    )
    durable = "in its log without fsync: a crash of the program takes nothing, one of the machine what the kernel had not written"
    counted = "the block (chunks, index) that a snapshot makes of the head, as compaction does after two hours; not its log"

    def options(self, port: int, folder: Path) -> list[str]:
        config = folder / "prometheus.yml"
        config.write_text("scrape_configs: []\n")
        settings = ["--web.enable-remote-write-receiver", "--web.enable-admin-api", "--storage.tsdb.retention.time=100y"]
        return [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", *settings]

    def flush_and_merge(self) -> None:
        with self.http.open("/api/v1/admin/tsdb/snapshot", method="POST") as response:
            self.block = self.data / "snapshots" / json.loads(response.read())["data"]["name"]

    def stored(self) -> tuple[int, int]:
        return bytes_below(self.block), bytes_below(self.data)


ALL: tuple[type[System], ...] = (Wholegrain, WholegrainSingles, VictoriaMetrics, Prometheus)


def series_of(body: bytes) -> list[Json]:
    answer = json.loads(body)
    if answer["status"] != "success":
        raise BenchError(f"an answer without success: {answer}")
    result: list[Json] = answer["data"]["result"]
    return result


def metric(sensor: str) -> str:
    """The name of a sensor's metric in remote write."""
    return re.sub(r"[^A-Za-z0-9_]", "_", sensor)


def seconds(ns: int) -> str:
    """A time of PromQL; its resolution is a millisecond."""
    return f"{ns // MS_NS / 1e3:.3f}"


def range_text(span: Span) -> str:
    """A range back from the millisecond of a span's end that has all of it, whether its beginning counts (Prometheus 2) or not (VictoriaMetrics). Of both
    ends the milliseconds are taken, as the stores do: of their difference there may be one less."""
    return f"{span.to_ns // MS_NS - span.from_ns // MS_NS + 1}ms"
