"""Rezolus: its agent on the node; its recorder, which asks the agent in each period and writes the responses, as the server's part.

`default` are all samplers, as in the package's own agent.toml; `same` those of /proc/meminfo and /proc/vmstat, and the one of CPU time, which Rezolus
counts in the kernel instead of reading /proc/stat. The agent runs with real-time priority, which is its default. The time of its eBPF programs is time of
whatever they interrupt: no process of the agent shows it, only the run time of the programs on the node does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from harness import CHECKOUT, BenchError, free_port, get

from .base import PullMonitor, installed, version_of

# The recorder refuses a period below the time of one response, 1 to 2 ms; at 2 ms it made 1490 of 1500 samples.
SHORTEST_NS = 2 * 10**6
# How long the agent answers with the same snapshot by default.
CACHE_MAX_NS = 10**7
# bench/prepare-peers installs it here.
BUILT = CHECKOUT / "target/peers/rezolus/bin/rezolus"
SAME = ("memory_meminfo", "memory_vmstat", "cpu_usage")
# Each snapshot of a raw recording contains this once, in MessagePack: `source` and `rezolus`, with their lengths.
SNAPSHOT = b"\xa6source\xa7rezolus"
PIECE_BYTES = 1 << 20


class Rezolus(PullMonitor):
    name, configurations, shortest_ns, puller = "rezolus", ("default", "same"), SHORTEST_NS, "rezolus record"

    @classmethod
    def version(cls) -> str:
        version = version_of(agent(), "--version")
        if os.geteuid():
            raise BenchError(f"Rezolus {version} needs to be root for its eBPF programs: without it some samplers are missing silently")
        return version

    def start_node(self) -> None:
        port = free_port()
        listen = f"{'127.0.0.1' if self.has_server else '0.0.0.0'}:{port}"
        config = self.write(self.node_path("agent.toml"), settings(self.configuration, listen, self.interval_ns))
        self.run("rezolus", False, [agent(), config], self.node_path("rezolus.log"))
        url = f"http://127.0.0.1:{port}/metrics/json"
        self.processes.wait_until("the agent reports values", lambda: values(get(url)) > 0)
        recording = self.output
        # That of an earlier run in the same folder.
        recording.unlink(missing_ok=True)
        since = time.monotonic()
        interval = f"{self.interval_ns // 1000}us"
        self.pull([agent(), "record", "--format", "raw", "--interval", interval, f"http://{self.own_host}:{port}", recording])
        self.processes.wait_until("the recorder has samples", lambda: snapshots(pieces(recording)) > 1)
        self.metrics = values(get(url))
        self.counts(since, lambda: snapshots(pieces(recording)))


def agent() -> str:
    """The one that bench/prepare-peers built, else the system's."""
    return str(BUILT) if BUILT.exists() else installed("rezolus", "rezolus, from its makers")


def settings(configuration: str, listen: str, interval_ns: int) -> str:
    # A snapshot is never older than a period.
    cache_us = min(CACHE_MAX_NS, interval_ns // 2) // 1000
    enabled = configuration != "same"
    text = f'[general]\nlisten = "{listen}"\nttl = "{cache_us}us"\n[scheduler]\n[log]\nlevel = "info"\n[defaults]\nenabled = {str(enabled).lower()}\n'
    return text if enabled else text + "".join(f"[samplers.{sampler}]\nenabled = true\n" for sampler in SAME)


def values(snapshot: str) -> int:
    """Counters, gauges, and histograms, each of which has hundreds of buckets and counts once."""
    found = json.loads(snapshot)
    return sum(len(found[kind]) for kind in ("counters", "gauges", "histograms"))


def pieces(recording: Path) -> Iterator[bytes]:
    with recording.open("rb") as file:
        yield from iter(lambda: file.read(PIECE_BYTES), b"")


def snapshots(recording: Iterator[bytes]) -> int:
    """The snapshots of a raw recording, which may have gigabytes. A mark may be cut by the end of a piece."""
    count, rest = 0, b""
    for piece in recording:
        text = rest + piece
        count += text.count(SNAPSHOT)
        rest = text[-(len(SNAPSHOT) - 1) :]
    return count
