"""Load generators as child processes, and memory and stored readings of a server under their load."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import linear_regression, median
from typing import Self

from harness import CHECKOUT, BenchError, Json, line
from installation import Installation, rss_kb
from monitors.base import output_of
from monitors.processes import Process

# Sizes of the agents' groups, in turn, where a benchmark is about no certain size.
SIZES = (250, 500, 1000, 2500, 5000, 10_000)
# Memory counts as flat when it grows by less than this part of its median over the last two thirds of a run.
FLAT_PART = 0.1
END_MAX_S = 10.0


class ChildWithLines:
    """A child process that answers each line of its standard input by a line."""

    def __init__(self, command: Sequence[str]) -> None:
        self.name = command[1]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the child by the end of its input."""
        try:
            self._process.communicate(timeout=END_MAX_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def ask(self, request: str, each_second: Callable[[float], None] = lambda _: None) -> str:
        """The answer; until it comes, `each_second` gets the seconds since the request."""
        assert self._process.stdin
        try:
            print(request, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise BenchError(f"{self.name} ended before `{request}`; its reason is above") from None
        return self.line(each_second)

    def line(self, each_second: Callable[[float], None] = lambda _: None) -> str:
        """The next line."""
        assert self._process.stdout
        begun = time.monotonic()
        while not select.select([self._process.stdout], [], [], 1.0)[0]:
            each_second(time.monotonic() - begun)
        text = self._process.stdout.readline()
        if not text:
            raise BenchError(f"{self.name} ended; its reason is above")
        return text


class LoadGenerator(ChildWithLines):
    """Simulated agents with a connection each. They stay the same agents when they connect again."""

    def __init__(
        self, port: int, agents: int, sizes: Sequence[int], *, samples: int, interval_ns: int, window: int = 64, handshakes: int = 64,
        as_acknowledged: bool = False, tls: Sequence[str | Path] = (),
    ) -> None:  # fmt: skip
        words = ["generate-load", "--port", port, "--agents", agents, "--sensors", ",".join(map(str, sizes)), "--samples", samples]
        words += ["--interval-ns", interval_ns, "--window", window, "--handshakes", handshakes, *tls]
        words += ["--as-acknowledged"] if as_acknowledged else []
        super().__init__([os.environ["WHOLEGRAIN_BENCH"], *map(str, words)])

    def _totals(self, request: str, each_second: Callable[[float], None] = lambda _: None) -> Json:
        totals: Json = json.loads(self.ask(request, each_second))
        return totals

    def connect(self) -> Json:
        """Opens all connections and announces the schemas. All responses are totals since here."""
        return self._totals("connect")

    def run(self, seconds: float, each_second: Callable[[float], None] = lambda _: None) -> Json:
        """Publishes for a time; `each_second` gets the seconds since the beginning."""
        return self._totals(f"run {seconds}", each_second)

    def drain(self) -> Json:
        """Waits until everything is acknowledged."""
        return self._totals("drain")

    def close(self) -> Json:
        return self._totals("close")

    def sums(self) -> dict[str, list[int]]:
        """Batches, readings, sum of times, sum of integers and sum of floats that each agent made."""
        return self._totals("sums")


def interval_ns(agents: int, sizes: Sequence[int], rate: float) -> int:
    """The interval at which these agents together make `rate` readings a second."""
    return int(sum(sizes[at % len(sizes)] for at in range(agents)) * 1e9 / rate)


class Memory:
    """Resident memory of a process, MB, second by second."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.samples: list[tuple[float, float]] = []

    def look(self, seconds: float) -> None:
        self.samples.append((seconds, rss_kb(self._process) / 1e3))

    def result(self) -> Json:
        """The largest, and the growth over the last two thirds: before, caches and queues fill."""
        seconds, each = [second for second, _ in self.samples], [mb for _, mb in self.samples]
        x, y = seconds[len(seconds) // 3 :], each[len(each) // 3 :]
        slope = linear_regression(x, y).slope * 60 if len(set(x)) > 1 else 0.0
        flat = not x or slope * (x[-1] - x[0]) / 60 <= FLAT_PART * median(y)
        return {"max_mb": max(each, default=0.0), "slope_mb_per_min": slope, "flat": flat, "mb_each_second": each}

    def show(self) -> Json:
        result = self.result()
        line("server's resident memory, largest, MB", f"{result['max_mb']:.0f}")
        verdict = "flat: reached" if result["flat"] else "flat: MISSED"
        line("its growth over the last two thirds, MB/min", f"{result['slope_mb_per_min']:+.1f}", verdict)
        return result


def stored_sums(site: Installation) -> dict[str, list[int]]:
    """Readings, sum of times, sum of integers and sum of floats of each agent in the blocks, by DuckDB."""
    text = output_of([sys.executable, CHECKOUT / "testing/python/sum_rows.py", site.folder / "server/store"])
    return {name: [int(number) for number in numbers] for name, *numbers in (row.split() for row in text.splitlines())}


def check_stored(site: Installation, expected: dict[str, list[int]]) -> Json:
    """Whether the blocks hold exactly the readings that the agents made, by DuckDB's sums."""
    found = stored_sums(site)
    rows, made = sum(sums[0] for sums in found.values()), sum(sums[1] for sums in expected.values())
    differing = sum(found.get(name, [0] * 4) != sums[1:] for name, sums in expected.items())
    verdict = "reached" if differing == 0 and rows == made else "MISSED"
    line("readings in the blocks (DuckDB), of those acknowledged", f"{rows - made:+}", f"each once: {verdict}")
    line("agents whose rows, times or values do not add up", differing, "0")
    return {"rows": rows, "made": made, "agents_that_differ": differing}


def show_acknowledgements(totals: Json) -> None:
    acks = totals["acks_ms"]
    line("from sending to PUBACK: median, 99th percentile, largest, ms", f"{acks['p50']:.1f} {acks['p99']:.1f} {acks['max']:.0f}")
