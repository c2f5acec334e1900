"""CPU microseconds a metric and resident memory of each monitor on an otherwise idle machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness import BenchError, Json, figure, interval_name, parse_interval, write_result

from . import ALL, find
from .__main__ import version_or_reason

EXAMPLES = """examples:
  wholegrain-bench monitor-cost --seconds 20 --rounds 3
  wholegrain-bench monitor-cost --interval 1s --interval 10ms --monitors bare:reads,wholegrain:same,collectd:same"""
# About how long a monitor takes to start and to stop: only for the estimate.
START_S = 5.0


@dataclass(frozen=True)
class Case:
    monitor: str
    configuration: str
    interval_ns: int

    def __str__(self) -> str:
        return f"{self.monitor} {self.configuration} {interval_name(self.interval_ns)}"

    def row(self, **more: object) -> Json:
        return {"monitor": self.monitor, "configuration": self.configuration, "interval_ns": self.interval_ns, **more}


def main(arguments: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="wholegrain-bench monitor-cost", description=__doc__, epilog=EXAMPLES, formatter_class=form)
    parser.add_argument("--interval", action="append", help="sampling period; may be given several times (default: 1s)")
    parser.add_argument("--monitors", default="", help="names with commas, with one configuration each (wholegrain:same) or all; default: every one")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each is measured in each round")
    parser.add_argument("--rounds", type=int, default=3, help="how often each has its turn")
    options = parser.parse_args(arguments)
    left_out: list[Json] = []
    try:
        found = cases(options.interval or ["1s"], [name for name in options.monitors.split(",") if name], left_out)
    except BenchError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    turns = len(found) * options.rounds
    about = turns * (options.seconds + START_S) / 60
    print(f"{turns} turns of {options.seconds:g} s and the time to start: about {about:.0f} min", file=sys.stderr)
    measured: dict[Case, list[Json]] = {}
    failed: set[Case] = set()
    for number in range(options.rounds):
        for at, case in enumerate(found):
            if case in failed:
                continue
            print(f"  {number * len(found) + at + 1}/{turns}  round {number + 1}: {case}", file=sys.stderr)
            try:
                measured.setdefault(case, []).append(turn(case, options.seconds))
            except BenchError as error:
                print(f"  left out: {error}", file=sys.stderr)
                left_out.append(case.row(reason=str(error)))
                failed.add(case)
    rows = [summary(case, turns_of) for case, turns_of in measured.items()]
    print_table(rows, left_out)
    figures = []
    for case, each in measured.items():
        for column, unit in (("us_per_metric", "us"), ("rss_kb", "kB"), ("pss_kb", "kB")):
            if values := [one[column] for one in each if one[column] is not None]:
                figures.append(figure(f"{case} {column}", values, unit))
    write_result("monitor-cost", {"seconds": options.seconds, "rounds": options.rounds, "rows": rows, "left_out": left_out}, figures)
    return 0


def cases(intervals: Sequence[str], names: Sequence[str], left_out: list[Json]) -> list[Case]:
    """The cases to measure, period by period; the others go to `left_out` with the reason."""
    for name in names:
        monitor, _, configuration = name.partition(":")
        if configuration and configuration not in (known := find(monitor).configurations):
            raise BenchError(f"{monitor} has no configuration {configuration}; there are {', '.join(known)}")
        find(monitor)
    found = []
    for interval_ns in map(parse_interval, intervals):
        for kind in ALL:
            selected = [c for c in kind.configurations if not names or kind.name in names or f"{kind.name}:{c}" in names]
            reason = version_or_reason(kind)[1] if selected else None
            if reason is None and interval_ns < kind.shortest_ns:
                reason = f"its shortest period is {interval_name(kind.shortest_ns)}"
            for configuration in selected:
                case = Case(kind.name, configuration, interval_ns)
                if reason is None:
                    found.append(case)
                else:
                    left_out.append(case.row(reason=reason))
    return found


def turn(case: Case, seconds: float) -> Json:
    """One turn of a monitor, as an experiment runs it."""
    words = ["monitor", "run", case.monitor, "--configuration", case.configuration, "--interval", interval_name(case.interval_ns), "--dir"]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [os.environ["WHOLEGRAIN_BENCH"], *words, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        assert process.stdin and process.stdout and process.stderr
        stack.callback(process.stdin.close)

        def line(key: str) -> Json:
            assert process.stdout and process.stderr
            if not (text := process.stdout.readline()):
                raise BenchError(process.stderr.read().strip())
            found: Json = json.loads(text)[key]
            return found

        ready = line("ready")
        time.sleep(seconds)
        process.stdin.close()
        return cost(ready, line("used"))


def cost(ready: Json, used: Json) -> Json:
    """One turn in the units of the report."""

    def total(field: str, server: bool = False) -> int:
        return sum(int(process[field]) for process in used["processes"] if process["server"] == server)

    window, missed = max(used["window_ns"], 1), None
    if used["samples"] is not None and used["missed"] is not None:
        missed = used["missed"] / max(used["samples"] + used["missed"], 1)
    # A tick that was missed cost nothing: the cost is divided by the others.
    values = window / ready["interval_ns"] * (1 - (missed or 0)) * ready["metrics"]
    return {
        "version": ready["version"], "metrics": ready["metrics"], "cpu_share": total("cpu_ns") / window,
        "us_per_metric": total("cpu_ns") / 1e3 / values if values > 0 else None, "rss_kb": total("rss_kb"), "pss_kb": total("pss_kb"),
        "server_cpu_share": total("cpu_ns", server=True) / window, "missed_share": missed,
    }  # fmt: skip


def summary(case: Case, turns: Sequence[Json]) -> Json:
    """Medians over the rounds."""
    row = case.row(version=turns[0]["version"], each_cpu_share=[one["cpu_share"] for one in turns])
    for column in ("metrics", "cpu_share", "us_per_metric", "rss_kb", "pss_kb", "server_cpu_share", "missed_share"):
        values = [one[column] for one in turns if one[column] is not None]
        row[column] = median(values) if values else None
    return row | {"metrics": int(row["metrics"])}


def print_table(rows: Sequence[Json], left_out: Sequence[Json]) -> None:
    columns = (
        ("metrics", "metrics", 8, 1.0, 0), ("CPU, %", "cpu_share", 9, 100.0, 3), ("us/metric", "us_per_metric", 10, 1.0, 3), ("RSS, MB", "rss_kb", 8, 1e-3, 1),
        ("PSS, MB", "pss_kb", 8, 1e-3, 1), ("missed, %", "missed_share", 9, 100.0, 2), ("server, %", "server_cpu_share", 9, 100.0, 2),
    )  # fmt: skip
    print(f"{'monitor':<14} {'config.':<9} {'period':>6} " + " ".join(f"{head:>{width}}" for head, _, width, _, _ in columns) + "  version")
    for row in rows:
        cells = (f"{'-':>{w}}" if row[name] is None else f"{row[name] * scale:>{w}.{digits}f}" for _, name, w, scale, digits in columns)
        print(f"{row['monitor']:<14} {row['configuration']:<9} {interval_name(row['interval_ns']):>6} {' '.join(cells)}  {row['version']}")
    for row in left_out:
        print(f"left out: {row['monitor']} {row['configuration']} {interval_name(row['interval_ns'])}: {row['reason']}")


if __name__ == "__main__":
    sys.exit(main())
