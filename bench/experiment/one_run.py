"""One run: the monitor is started and samples on all nodes, the workload runs to its end, the monitor is stopped and reports its use. Whatever fails,
nothing of it is left running."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import BenchError, Json, interval_name

from .children import Children, Ended, Event, Line, Stop
from .file import Experiment, Workload
from .launcher import Site

# Of a program's own words, so many characters and lines go into the reason of a failure.
WORDS_MAX, LINES_MAX = 400, 3
# A part behind a launcher may take so much longer until its end is known.
LAUNCHER_END_S = 5.0


class Stopped(Exception):
    """A signal ended this program: there is no result."""


class Failed(Exception):
    """The run does not count: `part` is monitor or workload."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part, self.reason = part, reason


@dataclass
class Part:
    """One part of a monitor."""

    child: int
    node: bool
    place: str | None
    log: Path
    ready: Json | None = None
    used: Json | None = None
    ended: bool = False

    def failed(self, reason: str) -> Failed:
        place = f"{self.place}: " if self.place else ""
        return Failed("monitor", place + with_words(reason, self.log))


@dataclass
class Run:
    experiment: Experiment
    site: Site
    children: Children
    condition: Json
    workload: Workload
    # Empty, for the monitor's files.
    monitor_folder: Path
    # Compiled workloads.
    programs_folder: Path
    # Errors go to this path with `-workload` after it, and `-monitor` and the node where there are several.
    logs: Path

    def make(self) -> Json:
        """Outcome, failure, the monitor's report and its use. When it returns no process of the run is left."""
        result: Json = {"outcome": None, "failure": None, "seen": None, "usage": None}
        parts: list[Part] = []
        try:
            self._steps(parts, result)
        except Failed as error:
            result["failure"] = {"part": error.part, "reason": error.reason}
        finally:
            left = self.children.end_all()
            if left:
                print(f"  processes outlived their parents, and were ended: {', '.join(left)}", file=sys.stderr)
        if self.children.stopped is not None:
            raise Stopped
        return result

    @property
    def _has_monitor(self) -> bool:
        return self.condition["interval_ns"] is not None

    def _steps(self, parts: list[Part], result: Json) -> None:
        if self._has_monitor:
            self._start_monitor(parts)
            result["seen"] = report_of(parts, self.monitor_folder)
        result["outcome"] = outcome = self._run_workload(parts)
        if self._has_monitor:
            self._stop_monitor(parts)
            result["usage"] = usage_of(parts)
        if not outcome["verified"]:
            raise Failed("workload", "its own check found its result wrong")

    def _log(self, part: str, place: str | None = None) -> Path:
        suffix = "-" + place.replace("/", "-").replace(" ", "-") if place else ""
        return Path(f"{self.logs}-{part}{suffix}")

    def _start(self, part: str, command: list[str], group: bool, log: Path) -> int:
        try:
            return self.children.start(command, group, log)
        except BenchError as error:
            raise Failed(part, str(error)) from error

    def _start_monitor(self, parts: list[Part]) -> None:
        deadline = time.monotonic() + self.experiment.ready_ns / 1e9
        for start in self.site.monitor(self.experiment, self.condition, self.monitor_folder):
            # The nodes' parts need what the server's part prepares.
            if start.node and any(not part.node and part.ready is None for part in parts):
                self._wait_ready(parts, deadline)
            log = self._log("monitor", start.place)
            parts.append(Part(self._start("monitor", start.command, False, log), start.node, start.place, log))
        self._wait_ready(parts, deadline)

    def _wait_ready(self, parts: list[Part], deadline: float) -> None:
        while silent := [part for part in parts if part.ready is None]:
            match self.children.next(deadline):
                case Stop():
                    raise Stopped
                case None:
                    limit, others = interval_name(self.experiment.ready_ns), [part.place for part in silent[1:] if part.place]
                    nor = f", nor {', '.join(others)}" if others else ""
                    raise silent[0].failed(f"{len(silent)} of its {len(parts)} parts did not sample within {limit}{nor}")
                case event:
                    self._monitor_event(parts, event)

    def _monitor_event(self, parts: list[Part], event: Event) -> None:
        """A monitor's line or its end, which before the word to stop is a failure."""
        if not isinstance(event, Line | Ended) or (part := next((p for p in parts if p.child == event.child), None)) is None:
            return
        if isinstance(event, Line):
            # Other lines are messages for people.
            with contextlib.suppress(ValueError):
                said = json.loads(event.text)
                if isinstance(said, dict):
                    part.ready, part.used = said.get("ready", part.ready), said.get("used", part.used)
            return
        status = self.children.reap(part.child) or "exit status: 0"
        when = "during the run" if all(p.ready for p in parts) else "before it sampled"
        raise part.failed(f"it ended {when} ({status})")

    def _run_workload(self, parts: list[Part]) -> Json:
        job = [file for part in parts if part.ready for file in part.ready.get("job", [])]
        if job and self.site.is_launched:
            # Of the monitor's setting: beside another the workload is as it should be.
            raise Failed(
                "monitor", "the monitor reads a job that it made on each node, which ranks of a launcher cannot enter: start the experiment within a "
                "resource manager's job, or leave this configuration out",
            )  # fmt: skip
        limit_ns = self.experiment.run_ns
        command = in_job(job, self.site.workload(self.workload, self.condition, self.programs_folder, limit_ns))
        log, begun = self._log("workload"), time.monotonic()
        child = self._start("workload", command, True, log)
        lines: list[str] = []
        while True:
            match self.children.next(begun + limit_ns / 1e9):
                case Stop():
                    raise Stopped
                case None:
                    raise Failed("workload", with_words(f"it did not end within {interval_name(limit_ns)}", log))
                case Line(number, text) if number == child:
                    lines.append(text)
                case Ended(number, at) if number == child:
                    took = at - begun
                    break
                case event:
                    self._monitor_event(parts, event)
        if status := self.children.reap(child):
            raise Failed("workload", with_words(status, log))
        own = self.workload
        if own.command is not None and own.timed_by == "runner":
            of = {"workload": own.name, "size": own.size, "ranks": own.ranks}
            return of | {"seconds": took, "verified": True, "figures": {}, "histogram": []}
        outcome = next((found for line in reversed(lines) if (found := outcome_of(line))), None)
        if outcome is None:
            raise Failed("workload", with_words("it printed no line with its outcome", log))
        if not (math.isfinite(outcome["seconds"]) and outcome["seconds"] > 0):
            raise Failed("workload", f"it reports a time of {outcome['seconds']} s")
        return outcome

    def _stop_monitor(self, parts: list[Part]) -> None:
        """Tells all parts to stop, the nodes' first, and takes their reports."""
        for node in (True, False):
            # A part that this program started itself gets a signal; one behind a launcher the end of its input.
            by_signal = not node or not self.site.is_launched
            own = [part for part in parts if part.node == node]
            for part in own:
                self.children.tell_to_end(part.child, by_signal)
            self._wait_stopped(own, parts)

    def _wait_stopped(self, own: list[Part], parts: list[Part]) -> None:
        limit_ns = self.experiment.stop_ns
        deadline = time.monotonic() + limit_ns / 1e9 + (LAUNCHER_END_S if self.site.is_launched else 0)
        while late := [part for part in own if not part.ended]:
            match self.children.next(deadline):
                case Stop():
                    raise Stopped
                case None:
                    raise late[0].failed(f"it did not stop within {interval_name(limit_ns)}")
                case Ended(number, _) if part := next((part for part in own if part.child == number), None):
                    part.ended, status = True, self.children.reap(number)
                    if status or part.used is None:
                        raise part.failed(f"when stopped: {status or 'it did not report its use'}")
                case event:
                    self._monitor_event(parts, event)


def in_job(files: Sequence[str], command: list[str]) -> list[str]:
    """The command as one that enters a job first, by writing itself into each of these files."""
    if not files:
        return command
    enter = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit; shift; done; shift; exec "$@"'
    return ["sh", "-c", enter, "sh", *files, "--", *command]


def outcome_of(line: str) -> Json | None:
    """The outcome in a line of a workload; None for any other line."""
    try:
        found = json.loads(line)
        outcome = {"workload": str(found["workload"]), "size": str(found["size"]), "ranks": int(found["ranks"]), "seconds": float(found["seconds"])}
        return outcome | {"verified": found["verified"] is True, "figures": dict(found["figures"]), "histogram": list(found["histogram"])}
    except (ValueError, TypeError, KeyError):
        return None


def with_words(reason: str, log: Path) -> str:
    """A reason with the last words of the program."""
    words = last_words(log.read_bytes().decode(errors="replace") if log.exists() else "")
    return f"{reason}: {words}" if words else reason


def last_words(text: str) -> str:
    """From the last line that calls itself an error on, or the last lines; without a stack."""
    text = text.split("Stack backtrace:")[0]
    lines = [line.strip() for line in text.splitlines() if any(c.isalnum() for c in line)]
    errors = [at for at, line in enumerate(lines) if line.startswith("Error:")]
    begin = errors[-1] if errors else max(len(lines) - LINES_MAX, 0)
    return "; ".join(lines[begin : begin + LINES_MAX])[:WORDS_MAX]


def report_of(parts: list[Part], folder: Path) -> Json | None:
    """The reports of a monitor's parts in one: `metrics` is the mean over the nodes."""
    nodes = [part.ready for part in parts if part.node and part.ready]
    servers = [part.ready for part in parts if not part.node and part.ready]
    # The paths of a run's files differ from run to run.
    configured = "\n".join(ready["configured"] for ready in [*servers, nodes[0]]).replace(str(folder), "{dir}")
    return {"version": nodes[0]["version"], "metrics": sum(n["metrics"] for n in nodes) // len(nodes), "configured": configured}


def usage_of(parts: list[Part]) -> Json:
    """The use of a monitor: means over the nodes, sums of samples, and the server's part."""
    nodes = [part.used for part in parts if part.node and part.used]
    processes = [process for part in parts if part.used for process in part.used["processes"]]

    def total(field: str, server: bool) -> int:
        return sum(int(process[field]) for process in processes if process["server"] == server)

    def samples(field: str) -> int | None:
        each = [used.get(field) for used in nodes]
        return None if None in each else sum(int(count) for count in each if count is not None)

    return {
        "node_cpu_ns": total("cpu_ns", False) // len(nodes),
        "server_cpu_ns": total("cpu_ns", True),
        "window_ns": sum(used["window_ns"] for used in nodes) // len(nodes),
        "rss_kb": total("rss_kb", False) // len(nodes),
        "pss_kb": total("pss_kb", False) // len(nodes),
        "samples": samples("samples"),
        "missed": samples("missed"),
    }
