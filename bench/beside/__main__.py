"""The server beside VictoriaMetrics and Prometheus on the same recorded readings: ingest, stored bytes, queries.

The agent records this machine, or `--data` names a folder with a recording. A system that is not installed, or that does not store each reading once, is
left out with the reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from harness import BenchError, Json, line, write_result
from monitors.base import ours
from monitors.processes import Processes

from .systems import ALL, Span, Sums, System, is_summed, metric

FILE = "sent.bin"
# Queries of each kind before those that count.
WARM_UP = 5
# Systems add up floats in orders of their own.
SUM_TOLERANCE = 1e-9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench beside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of a recording, which is made when there is none; a temporary one otherwise")
    parser.add_argument("--record-seconds", type=float, default=60.0, help="length of the recording")
    parser.add_argument("--record-interval-ms", type=int, default=100, help="sampling interval of the recording")
    parser.add_argument("--full", action="store_true", help="record an hour at 1 s")
    parser.add_argument("--quiet", action="store_true", help="record the machine as it is; otherwise a program computes, writes and talks meanwhile")
    parser.add_argument("--nodes", type=int, default=9, help="nodes whose readings they are when ingest and queries are measured; bytes are of one")
    parser.add_argument("--questions", type=int, default=20, help="queries of each kind; the median counts")
    parser.add_argument("--window-s", type=int, default=10, help="windows of the sum")
    parser.add_argument("--systems", type=systems, default=[*ALL], help=f"the systems to compare, with commas: {', '.join(s.name for s in ALL)}")
    options = parser.parse_args(arguments)
    if options.full:
        options.record_seconds, options.record_interval_ms = 3600.0, 1000
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = (options.data or Path(folder)) / FILE
            if not file.exists():
                record(file, options)
            compare(file, options)
    except (BenchError, OSError) as error:
        print(f"beside: {error}", file=sys.stderr)
        return 1
    return 0


def systems(names: str) -> list[type[System]]:
    found = [system for name in names.split(",") for system in ALL if system.name == name]
    if len(found) != len(names.split(",")):
        raise argparse.ArgumentTypeError(f"there are {', '.join(system.name for system in ALL)}")
    return found


def record(file: Path, options: argparse.Namespace) -> None:
    """The agent samples this machine with its default node sources, and `wholegrain-bench record` takes what it sends."""
    print(f"recording this machine at {options.record_interval_ms} ms for {options.record_seconds:.0f} s")
    file.parent.mkdir(parents=True, exist_ok=True)
    processes = Processes()
    with tempfile.TemporaryDirectory() as name, subprocess.Popen([bench(), "record", "--file", file], stdout=subprocess.PIPE, text=True) as recorder:
        folder = Path(name)
        processes.helpers.add(recorder.pid)
        assert recorder.stdout
        config = folder / "agent.toml"
        config.write_text(
            f'name = "node"\n[defaults]\ninterval = "{options.record_interval_ms}ms"\n[mqtt]\nurl = "mqtt://127.0.0.1:{int(recorder.stdout.readline())}"\n'
            f'[api]\nsocket = "{folder}/agent.sock"\n[sources.procfs]\n[sources.sysfs]\n'
        )
        processes.start("agent", False, [ours("wholegrain-agent"), "--config", str(config)], folder / "agent.log")
        if not options.quiet:
            processes.start("work", False, [sys.executable, str(Path(__file__).with_name("work.py")), name], folder / "work.log")
        try:
            time.sleep(options.record_seconds)
            processes.check("recording")
        except BaseException:
            recorder.kill()
            raise
        finally:
            processes.stop()
    if recorder.returncode:
        raise BenchError("recording failed; the reason is above")


def bench() -> str:
    return os.environ["WHOLEGRAIN_BENCH"]


class Replay:
    """Readings that are ready to be sent to a system."""

    def __init__(self, file: Path, system: System, nodes: Sequence[str]) -> None:
        command = [bench(), "replay", "--file", str(file), "--to", system.url, "--nodes", ",".join(nodes), *system.replay]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        about = json.loads(self._process.stdout.readline() or "null")
        if about is None:
            raise BenchError(f"reading {file} failed; the reason is above")
        self.nodes, self.about = nodes, about
        self.readings: int = about["readings"] * len(nodes)
        self.span = Span(about["from_ns"], about["to_ns"])
        self.sums: Sums = {name: (sum_["count"], sum_["sum"]) for name, sum_ in about["sums"].items()}

    def send(self) -> None:
        """Returns when everything is acknowledged."""
        output, _ = self._process.communicate("\n")
        if output.strip() != "sent":
            raise BenchError("not all readings were acknowledged; the reason is above")


def compare(file: Path, options: argparse.Namespace) -> None:
    rows: list[Json] = []
    details: Json = {"systems": [], "rows": rows, "left_out": [], "data": {"nodes": options.nodes, "window_s": options.window_s}}
    for kind in options.systems:
        found: list[Json] = []

        def add(what: str, value: float, unit: str) -> None:
            line(f"{what.replace('_', ' ')}, {unit}", f"{value:.2f}")
            found.append({"system": kind.name, "what": what, "value": value, "unit": unit})

        try:
            version = kind.version()
            print(f" {kind.name} {version}")
            details["data"] |= measure_bytes(kind, file, add)
            measure_load(kind, file, options, add)
        except (BenchError, OSError) as error:
            print(f"{kind.name} is left out: {error}", file=sys.stderr)
            details["left_out"].append({"system": kind.name, "reason": str(error)})
        else:
            rows += found
            about = {"configured": kind.configured, "durable": kind.durable, "counted": kind.counted}
            details["systems"].append({"system": kind.name, "version": version} | about)
    write_result("beside", details)


Add = Callable[[str, float, str], None]


def measure_bytes(kind: type[System], file: Path, add: Add) -> Json:
    """Bytes of one node's readings, each of which must be there; what the recording is."""
    with tempfile.TemporaryDirectory() as folder:
        system = kind(Path(folder))
        try:
            replay = Replay(file, system, ["n0"])
            replay.send()
            system.flush_and_merge()
            check(system, replay, "n0")
            stored, all_files = system.stored()
        finally:
            system.close()
    add("bytes_per_reading", stored / replay.readings, "B")
    add("bytes_per_reading_all_files", all_files / replay.readings, "B")
    about, seconds = replay.about, (replay.span.to_ns - replay.span.from_ns) / 1e9
    return {"readings": about["readings"], "readings_left_out": about["readings_left_out"], "sensors": len(replay.sums), "seconds": seconds}


def measure_load(kind: type[System], file: Path, options: argparse.Namespace, add: Add) -> None:
    """Ingest and queries of many nodes."""
    nodes = [f"n{number}" for number in range(1, options.nodes + 1)]
    with tempfile.TemporaryDirectory() as folder:
        system = kind(Path(folder))
        try:
            replay = Replay(file, system, nodes)
            used, begun = system.cpu_ns(), time.monotonic()
            replay.send()
            seconds, acknowledged_ns = time.monotonic() - begun, (system.cpu_ns() - used) / replay.readings
            add("rss_mb", system.rss_kb() / 1e3, "MB")
            system.flush_and_merge()
            add("ingest_cpu_ns_per_reading", (system.cpu_ns() - used) / replay.readings, "ns")
            add("ingest_cpu_ns_per_reading_acknowledged", acknowledged_ns, "ns")
            add("ingest_wall_readings_per_s", replay.readings / seconds, "1/s")
            check(system, replay, nodes[-1])
            measure_queries(system, replay, options, add)
        finally:
            system.close()


def measure_queries(system: System, replay: Replay, options: argparse.Namespace, add: Add) -> None:
    nodes, span, sums = replay.nodes, replay.span, replay.sums
    sensor = "meminfo/MemFree" if "meminfo/MemFree" in sums else next(iter(sums))
    ms, body = timed(options.questions, lambda: system.one_sensor(nodes[-1], sensor, span))
    expect("readings of one sensor", system.count(body), sums[sensor][0], sums[sensor][0])
    add("query_one_sensor_ms", ms, "ms")
    ms, body = timed(options.questions, lambda: system.windows(nodes, span, options.window_s))
    windows = (span.to_ns - span.from_ns) // 10**9 // options.window_s
    expect("windows", system.count(body), windows, windows + 2)
    add("query_thousand_sensors_ms", ms, "ms")
    ms, body = timed(options.questions, lambda: system.newest(nodes, span))
    newest = len(sums) * len(nodes)
    expect("newest values", system.count_newest(body), newest, newest)
    add("query_newest_ms", ms, "ms")
    add("query_thousand_sensors_count", sum(map(is_summed, sums)) * len(nodes), "1")
    add("query_newest_count", newest, "1")


def timed(count: int, query: Callable[[], bytes]) -> tuple[float, bytes]:
    """The median time until an answer has been read, ms, and the last answer."""
    times, body = [], b""
    for _ in range(WARM_UP + count):
        begun = time.perf_counter()
        body = query()
        times.append((time.perf_counter() - begun) * 1e3)
    return median(times[WARM_UP:]), body


def expect(what: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        raise BenchError(f"{found} {what} came, {least} are there")


def check(system: System, replay: Replay, node: str) -> None:
    """Whether a system has each reading of a node once, and no other."""
    found = system.sums(node, replay.span)
    if count := differing(replay.sums, found):
        there = sum(readings for readings, _ in found.values())
        raise BenchError(f"{count} of {len(replay.sums)} sensors differ; {there} readings are there, {replay.about['readings']} were sent")


def differing(expected: Sums, found: Sums) -> int:
    """How many sensors' readings are not exactly those that were sent."""
    lacking = 0
    for name, (count, total) in expected.items():
        there = found.get(name, found.get(metric(name), (0, 0.0)))
        lacking += there[0] != count or not math.isclose(total, there[1], rel_tol=SUM_TOLERANCE)
    return lacking + max(len(found) - len(expected), 0)


if __name__ == "__main__":
    sys.exit(main())
