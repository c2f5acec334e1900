"""The yardsticks, native loops of `wholegrain-bench`: a tick alone, a tick with the reads of the same files as our `same`, and one with those of our
`job`."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path

from harness import BenchError, Json

from .base import Monitor, output_of

FILES = ("/proc/meminfo", "/proc/vmstat", "/proc/stat")
# Times in a line of /proc/stat for one CPU, or for all.
CPU_TIMES = 10


class Job:
    """A job's cgroups on a machine without a resource manager, held by a native helper until its standard input ends."""

    def __init__(self, reads: Path | None = None) -> None:
        command = [os.environ["WHOLEGRAIN_BENCH"], "job-group", *(["--reads", str(reads)] if reads else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout and self.process.stderr
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"there is no job here, and none can be made: {self.process.stderr.read().strip()}")
        self.about: Json = json.loads(line)

    def stop(self) -> None:
        self.process.communicate()


class Bare(Monitor):
    name, configurations, shortest_ns = "bare", ("tick", "reads", "job-reads"), 50_000

    @classmethod
    def version(cls) -> str:
        return output_of([os.environ["WHOLEGRAIN_BENCH"], "--version"]).split()[-1]

    def start_node(self) -> None:
        counts, reads = self.node_path("counts"), self.node_path("reads")
        # Those of an earlier loop in the same folder.
        counts.unlink(missing_ok=True)
        command = [os.environ["WHOLEGRAIN_BENCH"], "bare", "--interval-ms", repr(self.interval_ns / 1e6), "--counts", str(counts)]
        match self.configuration:
            case "tick":
                command.append("--tick-only")
            case "reads":
                self.metrics = values()
            case _:
                job = self.use_job(Job(reads))
                self.configured += f"# reads\n{reads.read_text()}"
                self.metrics = job.about["values"]
                command += ["--reads", str(reads)]
        self.run("bare loop", False, command, self.node_path("log"))
        self.processes.wait_until("the bare loop ticks", lambda: read_counts(counts)[0] > 0)
        self._counts = counts

    def use_job(self, job: Job) -> Job:
        self._job, self.job = job, job.about["task_files"]
        self.processes.helpers.add(job.process.pid)
        return job

    def ticks(self) -> tuple[int, int] | None:
        return read_counts(self._counts) if self.has_node else None

    def stop(self) -> None:
        super().stop()
        if self.job:
            self._job.stop()


def read_counts(path: Path) -> tuple[int, int]:
    """Ticks made and missed, in the 16 bytes that the loop maps."""
    text = path.read_bytes()
    # The file is empty until the loop maps it.
    made, missed = struct.unpack("=QQ", text) if text else (0, 0)
    return made, missed


def values() -> int:
    """Values in the files: one a line; of a CPU's line all; of the interrupts' lines their sums alone; the boot time is none."""
    lines = [line for file in FILES for line in Path(file).read_text().splitlines() if not line.startswith("btime")]
    return sum(CPU_TIMES if line.startswith("cpu") else 1 for line in lines)
