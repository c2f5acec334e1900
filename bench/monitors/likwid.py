"""LIKWID: `likwid-perfctr` in timeline mode, which reads the hardware counters of each core in each period. It reads none of the data that the others
read; it is here because sites run it as their monitor of counters. It has no server's part. Most virtual machines have no counters: it is then left
out with its own words."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from harness import BenchError

from .base import Monitor, installed, version_of, whole

# Every processor that LIKWID supports has this group.
GROUP = "CLOCK"
# Before the values of a line: the group, the number of values and of threads, and the time.
LEADING = 4


class Likwid(Monitor):
    # Its manual says that values of shorter periods differ from the true ones.
    name, configurations, shortest_ns = "likwid", ("clock",), 10**8

    @classmethod
    def version(cls) -> str:
        program = installed("likwid-perfctr", "likwid")
        version = version_of(program, "-v")
        result = subprocess.run([program, "-e"], capture_output=True, text=True, errors="replace")
        if reason := refusal(result.stderr + result.stdout):
            raise BenchError(f"LIKWID {version} finds no hardware counters on this machine: {reason}")
        return version

    @classmethod
    def check_interval(cls, interval_ns: int) -> None:
        whole(interval_ns, 10**6, "LIKWID's periods are whole milliseconds")

    def start_node(self) -> None:
        lines = self.node_path("timeline")
        # That of an earlier run in the same folder.
        lines.unlink(missing_ok=True)
        cores, period = f"0-{(os.cpu_count() or 1) - 1}", f"{self.interval_ns // 10**6}ms"
        since = time.monotonic()
        self.run("likwid-perfctr", False, ["likwid-perfctr", "-c", cores, "-g", GROUP, "-t", period, "sleep", "infinity"], lines)
        self.processes.wait_until("likwid-perfctr writes lines of values", lambda: counted(lines)[0] > 0)
        self.metrics = counted(lines)[1]
        self.counts(since, lambda: counted(lines)[0])


def refusal(events: str) -> str | None:
    """Why it has no counters, in its own words; None when it has some."""
    lines = events.splitlines()
    error = next((line for line in lines if line.startswith(("ERROR - ", "ERROR: "))), None)
    if error:
        # A place in its source precedes the words.
        return error[8:].partition("] ")[2].strip() or error[7:].strip()
    return next((line.strip() for line in lines if "has 0 counters" in line), None)


def counted(path: Path) -> tuple[int, int]:
    """Lines of values, and how many values the last of them has. Other lines are messages."""

    def is_number(word: str) -> bool:
        try:
            return bool(float(word)) or True
        except ValueError:
            return False

    rows = [line.split() for line in path.read_text(errors="replace").splitlines()]
    whole_rows = [row for row in rows if len(row) > LEADING and all(map(is_number, row))]
    return len(whole_rows), len(whole_rows[-1]) - LEADING if whole_rows else 0
